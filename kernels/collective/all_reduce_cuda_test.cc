#include "kernels/collective/all_reduce_cuda.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/collective/peer_ranks.h"

namespace rootstock::kernels::cuda {
namespace {

// Every rank's operand of a sum, and the bits that it comes to.
struct Operands {
  std::vector<Bytes> data;
  Bytes sum;
};

Operands MakeOperands(int ranks, size_t n, Type type, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  Operands out;
  std::vector<float> sum(n, 0.0f);
  for (int r = 0; r < ranks; ++r) {
    std::vector<float> x(n);
    for (float& value : x) value = random() % 16 == 0 ? -0.0f : normal(random);
    RoundTo(type, x);
    for (size_t i = 0; i < n; ++i) sum[i] += x[i];
    out.data.push_back(Encode(type, x));
  }
  out.sum = Encode(type, sum);
  return out;
}

class PeerCollectives : public testing::TestWithParam<int> {
 protected:
  void Sum(size_t n, Type type, SumAlgorithm algorithm) {
    const Operands operands = MakeOperands(ranks_.size(), n, type, random_);
    const auto data = OnRanks(ranks_, operands.data);
    for (int r = 0; r < ranks_.size(); ++r) {
      ranks_.Use(r);
      ASSERT_EQ(cudaSuccess,
                AllReduceSum(ranks_.group(r), algorithm, data[r].get(), n, type, ranks_.stream(r)));
    }
    ranks_.Wait();
    for (const auto& result : data) {
      ASSERT_EQ(result.Get(), operands.sum)
          << n << (type == Type::kF32 ? " f32" : " bf16")
          << (algorithm == SumAlgorithm::kOneShot ? " one" : " two") << "-shot";
    }
  }

  void Gather(size_t most, int root) {
    std::vector<size_t> words;
    std::vector<Bytes> parts;
    Bytes want;
    for (int r = 0; r < ranks_.size(); ++r) {
      words.push_back(random_() % (most + 1));
      Bytes& part = parts.emplace_back(words[r] * 4);
      for (std::byte& b : part) b = static_cast<std::byte>(random_());
      want.insert(want.end(), part.begin(), part.end());
    }
    const auto in = OnRanks(ranks_, parts);
    const auto out = OnRanks(ranks_, std::vector<Bytes>(ranks_.size(), Bytes(want.size())));
    for (int r = 0; r < ranks_.size(); ++r) {
      ranks_.Use(r);
      ASSERT_EQ(cudaSuccess, GatherWords(ranks_.group(r), in[r].get(), words.data(), out[r].get(),
                                         root, ranks_.stream(r)));
    }
    ranks_.Wait();
    for (int r = 0; r < ranks_.size(); ++r) {
      const bool keeps = root == kAllRanks || root == r;
      ASSERT_EQ(out[r].Get(), keeps ? want : Bytes(want.size())) << r;
    }
  }

  void Broadcast(size_t words) {
    const int root = static_cast<int>(random_() % ranks_.size());
    std::vector<std::vector<uint32_t>> data(ranks_.size(), std::vector<uint32_t>(words, 7));
    for (uint32_t& word : data[root]) {
      word = random_() % 4 == 0 ? kEmptyWord : static_cast<uint32_t>(random_());
    }
    std::vector<DeviceArray<uint32_t>> arrays;
    for (int r = 0; r < ranks_.size(); ++r) {
      ranks_.Use(r);
      arrays.emplace_back(data[r]);
    }
    ranks_.Settle();
    for (int r = 0; r < ranks_.size(); ++r) {
      ranks_.Use(r);
      ASSERT_EQ(cudaSuccess,
                BroadcastWords(ranks_.group(r), arrays[r].get(), words, root, ranks_.stream(r)));
    }
    ranks_.Wait();
    for (const auto& array : arrays) ASSERT_EQ(array.Get(), data[root]);
  }

  Ranks ranks_{GetParam()};
  std::mt19937 random_{7};
};

// What one call leaves in the buffers must not reach the next ones, of other sizes and kinds.
TEST_P(PeerCollectives, ExactAndEqualOnAllRanksWhateverWentBefore) {
  for (int i = 0; i < 60 && !HasFatalFailure(); ++i) {
    const Type type = i % 2 == 0 ? Type::kBF16 : Type::kF32;
    for (const SumAlgorithm algorithm : {SumAlgorithm::kOneShot, SumAlgorithm::kTwoShot}) {
      const size_t most = MostSummed(algorithm, type, ranks_.size(), kBufferBytes);
      const size_t n = i == 7 || i == 8 ? most : 1 + random_() % (i % 3 == 0 ? 300 : most);
      Sum(n, type, algorithm);
    }
    Gather(i % 4 == 0 ? 20000 : 50, kAllRanks);
    Gather(i % 4 == 0 ? 20000 : 50, i % ranks_.size());
    Broadcast(1 + random_() % 3000);
  }
}

TEST_P(PeerCollectives, RefusesWhatTheBuffersDoNotTake) {
  for (const SumAlgorithm algorithm : {SumAlgorithm::kOneShot, SumAlgorithm::kTwoShot}) {
    const size_t most = MostSummed(algorithm, Type::kF32, ranks_.size(), kBufferBytes);
    EXPECT_EQ(cudaErrorInvalidValue, AllReduceSum(ranks_.group(0), algorithm, nullptr, most + 1,
                                                  Type::kF32, ranks_.stream(0)));
  }
}

// The buffers go on in turn from replay to replay: a graph of a number of calls that three does not
// divide.
TEST_P(PeerCollectives, Graphs) {
  constexpr size_t kN = 5000;
  constexpr int kCalls = 4;
  const Operands operands = MakeOperands(ranks_.size(), kN, Type::kBF16, random_);
  const auto source = OnRanks(ranks_, operands.data);
  std::vector<std::vector<DeviceArray<std::byte>>> results(ranks_.size());
  std::vector<cudaGraphExec_t> graphs(ranks_.size());
  for (int r = 0; r < ranks_.size(); ++r) {
    ranks_.Use(r);
    const cudaStream_t stream = ranks_.stream(r);
    for (int c = 0; c < kCalls; ++c) results[r].emplace_back(kN * 2);
    ROOTSTOCK_CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int c = 0; c < kCalls; ++c) {
      std::byte* const to = results[r][c].get();
      ROOTSTOCK_CUDA_OK(
          cudaMemcpyAsync(to, source[r].get(), kN * 2, cudaMemcpyDeviceToDevice, stream));
      ROOTSTOCK_CUDA_OK(AllReduceSum(ranks_.group(r),
                                     c % 2 == 0 ? SumAlgorithm::kOneShot : SumAlgorithm::kTwoShot,
                                     to, kN, Type::kBF16, stream));
    }
    cudaGraph_t graph = nullptr;
    ROOTSTOCK_CUDA_OK(cudaStreamEndCapture(stream, &graph));
    ROOTSTOCK_CUDA_OK(cudaGraphInstantiate(&graphs[r], graph, 0));
    cudaGraphDestroy(graph);
  }
  for (int replay = 0; replay < 200; ++replay) {
    for (int r = 0; r < ranks_.size(); ++r) {
      ranks_.Use(r);
      ROOTSTOCK_CUDA_OK(cudaGraphLaunch(graphs[r], ranks_.stream(r)));
    }
    if (replay % 20 != 19) continue;
    ranks_.Wait();
    for (int r = 0; r < ranks_.size(); ++r) {
      for (const auto& result : results[r]) ASSERT_EQ(result.Get(), operands.sum) << replay;
    }
  }
  for (const cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
}

INSTANTIATE_TEST_SUITE_P(Size, PeerCollectives, testing::Values(2, 3, 4, 8));

class LostRank : public testing::TestWithParam<SumAlgorithm> {};

TEST_P(LostRank, AbortEndsTheWaitAndAllLaterCalls) {
  Ranks ranks(2);
  const DeviceArray<std::byte> data(4000);
  ROOTSTOCK_CUDA_OK(
      AllReduceSum(ranks.group(0), GetParam(), data.get(), 1000, Type::kF32, ranks.stream(0)));
  EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(ranks.stream(0)));
  ranks.words()[0] = 1;
  ranks.Wait();
  EXPECT_EQ(ranks.words()[1], 0u);
  ROOTSTOCK_CUDA_OK(
      AllReduceSum(ranks.group(0), GetParam(), data.get(), 1000, Type::kF32, ranks.stream(0)));
  ranks.Wait();
}

TEST_P(LostRank, LimitEndsTheWait) {
  Ranks ranks(2, /*limit_ns=*/20'000'000);
  const DeviceArray<std::byte> data(4000);
  ROOTSTOCK_CUDA_OK(
      AllReduceSum(ranks.group(0), GetParam(), data.get(), 1000, Type::kF32, ranks.stream(0)));
  ranks.Wait();
  EXPECT_EQ(ranks.words()[1], 1u);
}

INSTANTIATE_TEST_SUITE_P(Algorithm, LostRank,
                         testing::Values(SumAlgorithm::kOneShot, SumAlgorithm::kTwoShot));

}  // namespace
}  // namespace rootstock::kernels::cuda
