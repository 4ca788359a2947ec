#include "kernels/lora/lora_exchange.h"

#include <gtest/gtest.h>

#include <memory>
#include <tuple>
#include <vector>

#include "kernels/lora/lora_exchange_case.h"

namespace rootstock::kernels::cuda {
namespace {

class LoraExchangeTest : public testing::TestWithParam<std::tuple<int, int, bool>> {};

TEST_P(LoraExchangeTest, EveryRankEndsWithAllComponents) {
  const auto& [tp_size, in, gather] = GetParam();
  const LoraTargets targets = ExchangeTargets(in, gather);
  const int splits = (in + 2047) / 2048;
  std::vector<std::unique_ptr<ExchangeRank>> ranks;
  for (int r = 0; r < tp_size; ++r) {
    ranks.push_back(std::make_unique<ExchangeRank>(tp_size, r, targets, gather, splits));
    ranks.back()->Pack();
  }
  // What a communicator does.
  std::vector<float> joined(ranks[0]->data().size());
  const size_t floats = ranks[0]->floats();
  for (int r = 0; r < tp_size; ++r) {
    const std::vector<float> of_rank = ranks[r]->data();
    ASSERT_LE(floats * (gather ? tp_size : 1), of_rank.size());
    for (size_t i = 0; i < floats; ++i) {
      if (gather) joined[r * floats + i] = of_rank[r * floats + i];
      if (!gather) joined[i] += of_rank[i];
    }
  }
  for (auto& rank : ranks) {
    rank->set_data(joined);
    rank->Unpack();
    ROOTSTOCK_CUDA_OK(cudaDeviceSynchronize());
    rank->Check();
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, LoraExchangeTest,
                         testing::Combine(testing::Values(2, 3, 4, 8), testing::Values(64, 5000),
                                          testing::Bool()));

}  // namespace
}  // namespace rootstock::kernels::cuda
