// Under mpirun; every rank runs every test. Ranks may share a GPU, whose processes then take turns:
// the kernels of 8 ranks run, inboxes opened by IPC, where there is one GPU.
#include "worker/parallel/peer_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "common/base/half.h"
#include "kernels/collective/sum_norm_cuda.h"
#include "worker/device/cuda_device.h"
#include "worker/parallel/node.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

constexpr size_t kBufferBytes = size_t{1} << 20;

// Signs and sizes are mixed, so the float sum depends on the order.
float ValueOf(int rank, size_t i) {
  return (0.001f + static_cast<float>((i * 7 + rank * 31) % 97)) * (rank % 3 == 1 ? -300.0f : 1.0f);
}

class PeerMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    auto device = CudaDevice::Create(FindNode().local_rank % CudaDevice::Count());
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }
  void TearDown() override {
    MPI_Barrier(MPI_COMM_WORLD);  // nobody closes what another still writes to
    memory_.reset();
    MPI_Barrier(MPI_COMM_WORLD);
  }
  void Open(std::chrono::nanoseconds limit = std::chrono::seconds(20),
            const cuda::SumNormRows& rows = {}) {
    memory_ = PeerMemory::Open(MPI_COMM_WORLD, kBufferBytes, rows, limit, stream());
    ASSERT_NE(memory_, nullptr);
  }
  cudaStream_t stream() const { return device_->stream(); }
  template <typename T>
  DeviceBuffer OnDevice(const std::vector<T>& from) {
    DeviceBuffer out = *device_->Allocate(std::max<size_t>(1, from.size()) * sizeof(T), "test");
    cudaMemcpyAsync(out.data(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice,
                    stream());
    return out;
  }
  template <typename T>
  std::vector<T> Read(const DeviceBuffer& buffer, size_t n) {
    std::vector<T> out(n);
    EXPECT_TRUE(device_->Read(buffer.data(), std::as_writable_bytes(std::span(out))).ok());
    return out;
  }

  std::vector<float> F32Of(int rank, size_t n) const {
    std::vector<float> out(n);
    for (size_t i = 0; i < n; ++i) out[i] = ValueOf(rank, i);
    return out;
  }
  std::vector<float> SumOf(size_t n) const {
    std::vector<float> out(n, 0.0f);
    for (int r = 0; r < size_; ++r) {
      for (size_t i = 0; i < n; ++i) out[i] += ValueOf(r, i);
    }
    return out;
  }
  // Of bf16 operands: f32, in rank order, rounded once.
  std::vector<uint16_t> HalfSumOf(size_t n) const {
    std::vector<uint16_t> out(n);
    for (size_t i = 0; i < n; ++i) {
      float sum = 0;
      for (int r = 0; r < size_; ++r) sum += BF16ToFloat(FloatToBF16(ValueOf(r, i)));
      out[i] = FloatToBF16(sum);
    }
    return out;
  }
  void CheckSum(size_t n, cuda::SumAlgorithm algorithm) {
    std::vector<uint16_t> half(n);
    for (size_t i = 0; i < n; ++i) half[i] = FloatToBF16(ValueOf(rank_, i));
    const DeviceBuffer data = OnDevice(F32Of(rank_, n)), halves = OnDevice(half);
    const auto sum = [&](const DeviceBuffer& buffer, cuda::Type type) {
      ASSERT_EQ(cudaSuccess,
                cuda::AllReduceSum(memory_->group(), algorithm, buffer.data(), n, type, stream()));
    };
    sum(data, cuda::Type::kF32);
    sum(halves, cuda::Type::kBF16);
    EXPECT_EQ(Read<float>(data, n), SumOf(n)) << n;
    EXPECT_EQ(Read<uint16_t>(halves, n), HalfSumOf(n)) << n;
  }
  // Part r has unit · (r + 1) words.
  void CheckGather(size_t unit, int root) {
    std::vector<size_t> words(size_);
    std::vector<float> want;
    for (int r = 0; r < size_; ++r) {
      words[r] = unit * (r + 1);
      const std::vector<float> part = F32Of(r, words[r]);
      want.insert(want.end(), part.begin(), part.end());
    }
    const DeviceBuffer in = OnDevice(F32Of(rank_, words[rank_]));
    const DeviceBuffer out = OnDevice(std::vector<float>(want.size(), -1.0f));
    ASSERT_EQ(cudaSuccess, cuda::GatherWords(memory_->group(), in.data(), words.data(), out.data(),
                                             root, stream()));
    const bool keeps = root == cuda::kAllRanks || root == rank_;
    EXPECT_EQ(Read<float>(out, want.size()), keeps ? want : std::vector<float>(want.size(), -1.0f));
  }
  void CheckBroadcast(size_t words, int root) {
    const std::vector<uint32_t> want(words, cuda::kEmptyWord + root);
    const DeviceBuffer data =
        OnDevice(rank_ == root ? want : std::vector<uint32_t>(words, uint32_t{7}));
    ASSERT_EQ(cudaSuccess,
              cuda::BroadcastWords(memory_->group(), data.data(), words, root, stream()));
    EXPECT_EQ(Read<uint32_t>(data, words), want);
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<PeerMemory> memory_;
  int rank_ = 0, size_ = 1;
};

TEST_F(PeerMemoryTest, SumsGathersAndBroadcastsOfAllRanks) {
  Open();
  for (const auto algorithm : {cuda::SumAlgorithm::kOneShot, cuda::SumAlgorithm::kTwoShot}) {
    const size_t most =
        cuda::MostSummed(algorithm, cuda::Type::kF32, size_, memory_->group().buffer_bytes);
    for (const size_t n : {size_t{1}, size_t{576}, size_t{9001}, most}) CheckSum(n, algorithm);
  }
  for (const int root : {cuda::kAllRanks, size_ - 1}) CheckGather(301, root);
  for (const int root : {0, size_ - 1}) CheckBroadcast(3001, root);
  EXPECT_FALSE(memory_->stalled());
}

// Five calls a replay: buffers go on in turn, which five do not divide.
TEST_F(PeerMemoryTest, RecordedSums) {
  Open();
  constexpr size_t kN = 4096;
  constexpr int kCalls = 5, kReplays = 4;
  const DeviceBuffer data = OnDevice(std::vector<float>(kN, 1.0f));
  ASSERT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  for (int call = 0; call < kCalls; ++call) {
    const auto algorithm =
        call % 2 == 0 ? cuda::SumAlgorithm::kOneShot : cuda::SumAlgorithm::kTwoShot;
    ASSERT_EQ(cudaSuccess, cuda::AllReduceSum(memory_->group(), algorithm, data.data(), kN,
                                              cuda::Type::kF32, stream()));
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream(), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  float want = 1.0f;
  for (int replay = 0; replay < kReplays; ++replay) {
    ASSERT_EQ(cudaGraphLaunch(exec, stream()), cudaSuccess);
    for (int call = 0; call < kCalls; ++call) want *= static_cast<float>(size_);
  }
  EXPECT_EQ(Read<float>(data, kN), std::vector<float>(kN, want));
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

// GPUs of unlike numbers of SMs, or with some turned off in other places, have room for unlike
// numbers of rows: all ranks cut a call into the launches of the one that has least.
TEST_F(PeerMemoryTest, SumsAndNormsOfUnlikeGpus) {
  constexpr int kN = 576, kTokens = 13, kLeast = 3;
  cuda::SumNormRows rows = cuda::FindSumNormRows(size_);
  ASSERT_GE(rows.Most(cuda::Type::kF32, false, kN), kLeast + size_);
  for (int32_t& most : rows.most) most = std::min(most, kLeast + (rank_ + 1) % size_);
  Open(std::chrono::seconds(20), rows);
  EXPECT_EQ(memory_->group().sum_norm->Most(cuda::Type::kF32, false, kN), kLeast);
  ASSERT_TRUE(cuda::TakesSumNorm(memory_->group(), cuda::Type::kF32, kN));
  const size_t elements = size_t{kN} * kTokens;
  const DeviceBuffer delta = OnDevice(F32Of(rank_, elements));
  const DeviceBuffer weight = OnDevice(std::vector<float>(kN, 1.0f));
  const DeviceBuffer residual = OnDevice(std::vector<float>(elements, 1.0f));
  const DeviceBuffer out = OnDevice(std::vector<float>(elements, NAN));
  const cuda::SumNormArgs args{
      cuda::Type::kF32, residual.as<float>(), delta.data(), weight.as<float>(), 0.0f, kN, kTokens,
      out.data()};
  ASSERT_EQ(cudaSuccess, cuda::SumAddRmsNorm(memory_->group(), args, {}, stream()));
  std::vector<float> want = SumOf(elements);
  for (float& x : want) x += 1.0f;
  EXPECT_EQ(Read<float>(residual, elements), want);
  const std::vector<float> normed = Read<float>(out, elements);
  for (int t = 0; t < kTokens; ++t) {
    double squares = 0;
    for (int i = 0; i < kN; ++i) squares += double{normed[t * kN + i]} * normed[t * kN + i];
    EXPECT_NEAR(squares / kN, 1.0, 1e-3) << t;
  }
  EXPECT_FALSE(memory_->stalled());
}

// Nobody else calls: the limit ends the wait, and the host's word ends another's.
TEST_F(PeerMemoryTest, AWaitInVainEnds) {
  Open(std::chrono::milliseconds(200));
  const DeviceBuffer data = OnDevice(F32Of(rank_, 576));
  const auto sum = [&] {
    ASSERT_EQ(cudaSuccess, cuda::AllReduceSum(memory_->group(), cuda::SumAlgorithm::kOneShot,
                                              data.data(), 576, cuda::Type::kF32, stream()));
  };
  if (rank_ == 0) {
    sum();
    ASSERT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);
  }
  EXPECT_EQ(memory_->stalled(), rank_ == 0);
  TearDown();
  Open(std::chrono::minutes(1));
  if (rank_ == size_ - 1) {
    sum();
    EXPECT_EQ(cudaStreamQuery(stream()), cudaErrorNotReady);
    memory_->Abort();
    ASSERT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);
  }
  EXPECT_FALSE(memory_->stalled());
}

}  // namespace
}  // namespace rootstock

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  MPI_Finalize();
  return result;
}
