// Under mpirun, a GPU a rank; every rank runs every test.
#include "worker/parallel/nccl_communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "common/base/half.h"
#include "common/base/status.h"
#include "worker/device/cuda_device.h"
#include "worker/parallel/node.h"

namespace rootstock {
namespace {

using std::chrono::milliseconds;

// Values whose float sum depends on the order.
float ValueOf(int rank, size_t i) {
  return std::ldexp(1.0f + 0.001f * static_cast<float>(i % 97), rank * 5 % 13) *
         (rank % 2 == 0 ? 1.0f : -1.0f);
}

class NcclCommunicatorTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CudaDevice::Create(FindNode().local_rank);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }
  void Join(const NcclOptions& options = {}) {
    auto joined = MakeNcclCommunicator(MPI_COMM_WORLD, *device_, options);
    ASSERT_TRUE(joined.ok()) << joined.status();
    communicator_ = *std::move(joined);
    rank_ = communicator_->rank();
    size_ = communicator_->size();
  }
  // A step's operator: one stream, enqueued.
  template <typename T>
  DeviceBuffer OnDevice(const std::vector<T>& from) {
    DeviceBuffer out = *device_->Allocate(std::max<size_t>(1, from.size() * sizeof(T)), "test");
    cudaMemcpyAsync(out.data(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice,
                    device_->stream());
    return out;
  }
  template <typename T>
  std::vector<T> Read(const DeviceBuffer& buffer, size_t n) {
    std::vector<T> out(n);
    EXPECT_TRUE(device_->Read(buffer.data(), std::as_writable_bytes(std::span(out))).ok());
    return out;
  }

  std::vector<uint16_t> Bf16Of(int rank, size_t n) const {
    std::vector<uint16_t> out(n);
    for (size_t i = 0; i < n; ++i) out[i] = FloatToBF16(ValueOf(rank, i));
    return out;
  }
  void CheckSum(size_t n) {
    std::vector<float> mine(n), want(n, 0.0f);
    std::vector<uint16_t> half = Bf16Of(rank_, n), half_want(n);
    for (size_t i = 0; i < n; ++i) mine[i] = ValueOf(rank_, i);
    for (size_t i = 0; i < n; ++i) {
      float sum = 0;
      for (int r = 0; r < size_; ++r) want[i] += ValueOf(r, i);
      for (int r = 0; r < size_; ++r) sum += BF16ToFloat(FloatToBF16(ValueOf(r, i)));
      half_want[i] = FloatToBF16(sum);
    }
    const DeviceBuffer data = OnDevice(mine), halves = OnDevice(half);
    ASSERT_TRUE(communicator_->AllReduceSum(data.data(), n, DType::kF32).ok());
    ASSERT_TRUE(communicator_->AllReduceSum(halves.data(), n, DType::kBF16).ok());
    EXPECT_EQ(Read<float>(data, n), want) << n;
    EXPECT_EQ(Read<uint16_t>(halves, n), half_want) << n;
  }
  void CheckGathers(size_t unit) {
    std::vector<size_t> counts(size_);
    std::vector<float> want;
    for (int r = 0; r < size_; ++r) {
      counts[r] = r == 1 ? 3 : unit * (r + 1);
      for (size_t i = 0; i < counts[r]; ++i) want.push_back(ValueOf(r, i));
    }
    std::vector<float> mine(counts[rank_]);
    for (size_t i = 0; i < mine.size(); ++i) mine[i] = ValueOf(rank_, i);
    const DeviceBuffer in = OnDevice(mine), all = OnDevice(std::vector<float>(want.size(), -1));
    ASSERT_TRUE(communicator_->AllGather(in.data(), counts, all.data(), DType::kF32).ok());
    EXPECT_EQ(Read<float>(all, want.size()), want);
    std::vector<float> placed(want.size(), -1);
    const size_t begin = std::accumulate(counts.begin(), counts.begin() + rank_, size_t{0});
    std::copy(mine.begin(), mine.end(), placed.begin() + begin);
    const DeviceBuffer place = OnDevice(placed);
    ASSERT_TRUE(
        communicator_->AllGather(place.as<float>() + begin, counts, place.data(), DType::kF32)
            .ok());
    EXPECT_EQ(Read<float>(place, want.size()), want);
    for (int root = 0; root < size_; ++root) {
      const DeviceBuffer out = OnDevice(std::vector<float>(want.size(), -1));
      ASSERT_TRUE(
          communicator_
              ->Gather(in.data(), counts, rank_ == root ? out.data() : nullptr, DType::kF32, root)
              .ok());
      if (rank_ == root) {
        EXPECT_EQ(Read<float>(out, want.size()), want);
      }
    }
  }
  void CheckBroadcast(size_t bytes) {
    for (int root = 0; root < size_; ++root) {
      const DeviceBuffer data = OnDevice(
          std::vector<uint8_t>(bytes, static_cast<uint8_t>(rank_ == root ? 40 + root : 0)));
      ASSERT_TRUE(communicator_->Broadcast(data.data(), bytes, root).ok());
      EXPECT_EQ(Read<uint8_t>(data, bytes),
                std::vector<uint8_t>(bytes, static_cast<uint8_t>(40 + root)));
    }
  }
  void CheckAll() {
    for (const size_t n : {1, 7, 576, 4097, 70001, 3000000}) CheckSum(n);
    for (const size_t n : {1, 100, 5001, 700000}) CheckGathers(n);
    for (const size_t n : {1, 4, 9001, 12000, 5000000}) CheckBroadcast(n);
  }
  // Rank 0 waits for the others in vain.
  void CheckLoss(NcclOptions options) {
    std::atomic<int> lost = -1;
    options.limit = milliseconds(300);
    options.on_loss = [&](const GroupLoss& loss) { lost = static_cast<int>(loss.cause); };
    Join(options);
    const DeviceBuffer data = OnDevice(std::vector<float>(100, 1.0f));
    ASSERT_TRUE(communicator_->AllReduceSum(data.data(), 100, DType::kF32).ok());
    ASSERT_EQ(cudaStreamSynchronize(device_->stream()), cudaSuccess);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank_ == 0) {
      const auto start = std::chrono::steady_clock::now();
      ASSERT_TRUE(communicator_->AllReduceSum(data.data(), 100, DType::kF32).ok());
      communicator_->Watch();
      while (lost < 0 && std::chrono::steady_clock::now() - start < std::chrono::seconds(5)) {
        std::this_thread::yield();
      }
      EXPECT_GT(std::chrono::steady_clock::now() - start, milliseconds(250));
    }
    // The limit of a step is over before that of a kernel's wait.
    EXPECT_EQ(lost, rank_ == 0 ? static_cast<int>(GroupLoss::Cause::kLateStep) : -1);
    MPI_Barrier(MPI_COMM_WORLD);
    communicator_.reset();
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Communicator> communicator_;
  int rank_ = 0, size_ = 1;
};

TEST_F(NcclCommunicatorTest, OwnAndNccl) {
  Join();
  CheckAll();
  EXPECT_FALSE(communicator_->AllReduceSum(nullptr, 3, DType::kF16).ok());
  EXPECT_FALSE(communicator_->AllGather(nullptr, {}, nullptr, DType::kF32).ok());
  CheckSum(5);
}

TEST_F(NcclCommunicatorTest, TwoShot) {
  Join({.algorithms = AlgorithmTable{0, 1 << 20}});
  CheckAll();
}

TEST_F(NcclCommunicatorTest, NcclAlone) {
  Join({.algorithms = AlgorithmTable{}});
  for (const size_t n : {1, 576, 70001}) CheckSum(n);
  CheckGathers(5001);
  CheckBroadcast(9001);
}

// Sums of all three algorithms in one graph, replayed.
TEST_F(NcclCommunicatorTest, RecordedCalls) {
  Join({.algorithms = AlgorithmTable{1 << 16, 1 << 20}});
  constexpr size_t kN[] = {1000, 200000, 1000000};
  std::vector<DeviceBuffer> data;
  for (const size_t n : kN) {
    data.push_back(OnDevice(std::vector<float>(n, 1.0f)));
    ASSERT_TRUE(communicator_->AllReduceSum(data.back().data(), n, DType::kF32).ok());
  }
  const cudaStream_t stream = device_->stream();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(communicator_->AllReduceSum(data[i].data(), kN[i], DType::kF32).ok());
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  float want = static_cast<float>(size_);
  for (int replay = 0; replay < 20; ++replay, want *= static_cast<float>(size_)) {
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Read<float>(data[i], kN[i]), std::vector<float>(kN[i], want)) << kN[i];
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

TEST_F(NcclCommunicatorTest, ALostRankIsNoticedInOurOwnKernels) { CheckLoss({}); }

// A wait that is given up ends its step before the watchdog has looked: Health tells.
TEST_F(NcclCommunicatorTest, AWaitThatIsGivenUpIsIllHealth) {
  Join({.limit = std::chrono::minutes(1),
        .wait_limit = milliseconds(300),
        .on_loss = [](const GroupLoss&) {}});
  const DeviceBuffer data = OnDevice(std::vector<float>(100, 1.0f));
  ASSERT_TRUE(communicator_->AllReduceSum(data.data(), 100, DType::kF32).ok());
  ASSERT_EQ(cudaStreamSynchronize(device_->stream()), cudaSuccess);
  EXPECT_TRUE(communicator_->Health().ok());
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank_ == 0) {
    ASSERT_TRUE(communicator_->AllReduceSum(data.data(), 100, DType::kF32).ok());
    ASSERT_EQ(cudaStreamSynchronize(device_->stream()), cudaSuccess);
  }
  EXPECT_EQ(communicator_->Health().ok(), rank_ != 0);
  MPI_Barrier(MPI_COMM_WORLD);
  communicator_.reset();
}

TEST_F(NcclCommunicatorTest, ALostRankIsNoticedInNccl) {
  CheckLoss({.algorithms = AlgorithmTable{}});
}

// One rank has no room for its inbox: all do without, and with NCCL.
TEST_F(NcclCommunicatorTest, WithoutPeerMemoryOnOneRankAllTakeNccl) {
  constexpr size_t kGib = size_t{1} << 30;
  void* taken = nullptr;
  size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  if (FindNode().local_rank == 1) {
    ASSERT_EQ(cudaMalloc(&taken, free - 5 * kGib), cudaSuccess);
  }
  Join({.algorithms = AlgorithmTable{2 * kGib, 2 * kGib}});  // an inbox of 6 GiB
  EXPECT_EQ(communicator_->peers(), nullptr);
  for (const size_t n : {1, 576, 70001}) CheckSum(n);
  CheckGathers(5001);
  CheckBroadcast(9001);
  communicator_.reset();
  cudaFree(taken);
}

// Two ranks on one GPU: NCCL refuses; nobody is left waiting, and all say the same.
TEST_F(NcclCommunicatorTest, AFailedJoinIsEveryRanksError) {
  auto first = CudaDevice::Create(0);
  ASSERT_TRUE(first.ok());
  const auto joined = MakeNcclCommunicator(MPI_COMM_WORLD, **first);
  ASSERT_FALSE(joined.ok());
  const std::string text(joined.status().message());
  EXPECT_EQ(text.rfind("tp_rank ", 0), 0u) << text;
  EXPECT_NE(text.find("NCCL=ncclCommInitRankConfig: "), std::string::npos) << text;
  ASSERT_EQ(cudaSetDevice(FindNode().local_rank), cudaSuccess);
  Join();
  CheckSum(576);
}

// The error of one rank, with its detail, is what all get.
TEST_F(NcclCommunicatorTest, RanksAgree) {
  Join();
  EXPECT_TRUE(communicator_->Agree(absl::OkStatus()).ok());
  absl::Status mine;
  if (rank_ == 1) {
    mine = MakeError(absl::StatusCode::kResourceExhausted, Reason::kNoMemory, "workspace", "cuda:1",
                     "no 7 bytes");
  }
  const absl::Status all = communicator_->Agree(mine);
  EXPECT_EQ(all.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(all.message(), "tp_rank 1: workspace=cuda:1: no 7 bytes");
  ASSERT_TRUE(GetErrorDetail(all).has_value());
  EXPECT_EQ(GetErrorDetail(all)->reason, Reason::kNoMemory);
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
