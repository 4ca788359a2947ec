#include "kernels/collective/exchange_lora_cuda.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/collective/peer_ranks.h"
#include "kernels/lora/lora_exchange_case.h"

namespace rootstock::kernels::cuda {
namespace {

class ExchangeLoraTest : public testing::TestWithParam<int> {
 protected:
  void Check(int in, bool gather) {
    const LoraTargets targets = ExchangeTargets(in, gather);
    const int splits = (in + 2047) / 2048;
    std::vector<std::unique_ptr<ExchangeRank>> of;
    for (int r = 0; r < ranks_.size(); ++r) {
      ranks_.Use(r);
      of.push_back(std::make_unique<ExchangeRank>(ranks_.size(), r, targets, gather, splits));
    }
    ranks_.Settle();
    for (int r = 0; r < ranks_.size(); ++r) {
      ranks_.Use(r);
      ASSERT_EQ(cudaSuccess, ExchangeLora(ranks_.group(r), of[r]->step(), of[r]->exchange(),
                                          targets, gather, kExchangeTokens, ranks_.stream(r)));
    }
    ranks_.Wait();
    for (const auto& rank : of) rank->Check();
  }

  Ranks ranks_{GetParam(), kLimitNs, 2 * kBufferBytes};
};

// In turn, so that what a call leaves in the inboxes would show in the next ones.
TEST_P(ExchangeLoraTest, EveryRankEndsWithAllComponents) {
  for (int i = 0; i < 4 && !HasFatalFailure(); ++i) {
    for (const int in : {64, 5000}) {
      Check(in, /*gather=*/true);
      Check(in, /*gather=*/false);
    }
  }
}

class EmptyExchangeTest : public ExchangeLoraTest {};

// A rank that is ahead must not reach a buffer whose words another has not read: the sums between
// calls without members come out right.
TEST_P(EmptyExchangeTest, CallsWithoutMembersKeepTheRanksTogether) {
  constexpr int kRounds = 300, kN = 40000;
  const LoraTargets targets = ExchangeTargets(64, /*gather=*/true);
  const auto ones = OnRanks(
      ranks_, std::vector<Bytes>(ranks_.size(), Encode(Type::kF32, std::vector<float>(kN, 1))));
  std::vector<std::unique_ptr<DeviceArray<std::byte>>> sums;
  std::vector<std::unique_ptr<DeviceArray<int32_t>>> none;
  for (int r = 0; r < ranks_.size(); ++r) {
    ranks_.Use(r);
    sums.push_back(std::make_unique<DeviceArray<std::byte>>(kN * sizeof(float)));
    none.push_back(std::make_unique<DeviceArray<int32_t>>(std::vector<int32_t>{0}));
  }
  ranks_.Settle();
  for (int round = 0; round < kRounds; ++round) {
    for (int r = 0; r < ranks_.size(); ++r) {
      ranks_.Use(r);
      const cudaStream_t stream = ranks_.stream(r);
      LoraExchangeStep exchange;
      exchange.num_members = none[r]->get();
      exchange.max_members = 64;
      exchange.num_layers = kExchangeLayers;
      exchange.tp_size = ranks_.size();
      exchange.tp_rank = r;
      for (int call = 0; call < 2; ++call) {
        ROOTSTOCK_CUDA_OK(
            ExchangeLora(ranks_.group(r), {}, exchange, targets, true, kExchangeTokens, stream));
      }
      ROOTSTOCK_CUDA_OK(cudaMemcpyAsync(sums[r]->get(), ones[r].get(), kN * sizeof(float),
                                        cudaMemcpyDeviceToDevice, stream));
      ROOTSTOCK_CUDA_OK(AllReduceSum(ranks_.group(r), SumAlgorithm::kOneShot, sums[r]->get(), kN,
                                     Type::kF32, stream));
    }
  }
  ranks_.Wait();
  EXPECT_EQ(ranks_.words()[1], 0u);
  const std::vector<float> want(kN, static_cast<float>(ranks_.size()));
  for (const auto& sum : sums) EXPECT_EQ(Decode(Type::kF32, sum->Get()), want);
}

TEST_P(ExchangeLoraTest, RefusesWhatTheInboxesDoNotTake) {
  EXPECT_TRUE(TakesExchangeLora(ranks_.group(0), kDecodeTokens, 64));
  EXPECT_FALSE(TakesExchangeLora(ranks_.group(0), kDecodeTokens + 1, 64));
  EXPECT_FALSE(TakesExchangeLora(ranks_.group(0), 64, 2000));
  LoraExchangeStep exchange;
  exchange.max_members = 2000;
  EXPECT_EQ(cudaErrorInvalidValue,
            ExchangeLora(ranks_.group(0), {}, exchange, {}, true, 64, ranks_.stream(0)));
}

INSTANTIATE_TEST_SUITE_P(Size, ExchangeLoraTest, testing::Values(2, 3, 4, 8));
INSTANTIATE_TEST_SUITE_P(Size, EmptyExchangeTest, testing::Values(2, 3, 4));

}  // namespace
}  // namespace rootstock::kernels::cuda
