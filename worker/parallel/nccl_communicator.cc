#include "worker/parallel/nccl_communicator.h"

#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/device/cuda_device.h"
#include "worker/parallel/agree.h"
#include "worker/parallel/check_counts.h"
#include "worker/parallel/make_communicator.h"
#include "worker/parallel/peer_memory.h"
#include "worker/parallel/watchdog.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

constexpr std::chrono::seconds kInitLimit(60);
constexpr char kStalled[] = "a tp_rank did not come to a collective";

absl::Status NcclError(const std::string& call, const std::string& why) {
  return MakeError(absl::StatusCode::kInternal, Reason::kInternal, "NCCL", call, why);
}

ncclDataType_t NcclTypeOf(DType type) {
  return type == DType::kF32 ? ncclFloat32 : type == DType::kBF16 ? ncclBfloat16 : ncclFloat16;
}

const char* CodeOf(ncclResult_t result) {
  constexpr ncclResult_t kInOrder[] = {ncclUnhandledCudaError, ncclSystemError,  ncclInternalError,
                                       ncclInvalidArgument,    ncclInvalidUsage, ncclRemoteError};
  const auto* at = std::find(std::begin(kInOrder), std::end(kInOrder), result);
  return kNcclCodes[at - std::begin(kInOrder)];
}

// *Step thread only.*
class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(MPI_Comm comm, CudaDevice& device) : device_(device) {
    MPI_Comm_dup(comm, &mpi_);
    MPI_Comm_rank(comm, &rank_);
    MPI_Comm_size(comm, &size_);
  }
  ~NcclCommunicator() override;
  absl::Status Start(const NcclOptions& options);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::Status AllReduceSum(void* data, size_t n, DType type) override;
  absl::Status AllGather(const void* in, std::span<const size_t> counts, void* out,
                         DType type) override;
  absl::Status Gather(const void* in, std::span<const size_t> counts, void* out, DType type,
                      int root) override;
  absl::Status Broadcast(void* data, size_t bytes, int root) override;
  void Watch() override { watchdog_->Mark(device_.stream()); }
  absl::Status Health() const override;
  absl::Status Agree(const absl::Status& mine) override { return AgreeOver(mpi_, mine); }
  const cuda::PeerGroup* peers() const override {
    return peers_ == nullptr ? nullptr : &peers_->group();
  }
  void Count(CollectiveOp op, size_t bytes) override { stats_.Count(op, bytes); }
  const CollectiveStats& stats() const override { return stats_; }
  void CountReplay(const CollectiveStats& calls) override { stats_.Add(calls); }

 private:
  absl::Status JoinNccl();
  // The result of a call, once it is known.
  absl::Status Done(ncclResult_t result, const char* call, std::chrono::seconds limit = kInitLimit);
  // Whether our own kernel gathers such parts, of `most` bytes at most.
  bool TakesParts(std::span<const size_t> counts, DType type, size_t most) const;
  absl::Status GatherWords(const void* in, std::span<const size_t> counts, void* out, DType type,
                           int root);

  CudaDevice& device_;
  MPI_Comm mpi_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  ncclComm_t nccl_ = nullptr;
  AlgorithmTable algorithms_;
  std::unique_ptr<PeerMemory> peers_;  // null: NCCL alone
  std::unique_ptr<Watchdog> watchdog_;
  CollectiveStats stats_;
};

NcclCommunicator::~NcclCommunicator() {
  watchdog_.reset();
  // Nothing runs any more, or nothing ever ends.
  if (peers_ != nullptr) peers_->Abort();
  if (nccl_ != nullptr) ncclCommAbort(nccl_);
  peers_.reset();
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized) MPI_Comm_free(&mpi_);
}

absl::Status NcclCommunicator::Health() const {
  if (peers_ == nullptr || !peers_->stalled()) return absl::OkStatus();
  return absl::InternalError(kStalled);
}

absl::Status NcclCommunicator::Done(ncclResult_t result, const char* call,
                                    std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (result == ncclInProgress) {
    if (std::chrono::steady_clock::now() > end) return NcclError(call, "did not end");
    std::this_thread::yield();
    if (const ncclResult_t asked = ncclCommGetAsyncError(nccl_, &result); asked != ncclSuccess) {
      result = asked;
    }
  }
  if (result == ncclSuccess) return absl::OkStatus();
  const char* detail = nccl_ == nullptr ? "" : ncclGetLastError(nccl_);
  return NcclError(call,
                   absl::StrCat(ncclGetErrorString(result), detail[0] == 0 ? "" : ": ", detail));
}

absl::Status NcclCommunicator::JoinNccl() {
  // Multicast objects of a program that dies can leave a host's switches out of order.
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/1);
  ncclUniqueId id = {};
  absl::Status status;
  if (rank_ == 0) status = Done(ncclGetUniqueId(&id), "ncclGetUniqueId");
  int well = status.ok() ? 1 : 0;
  MPI_Bcast(&well, 1, MPI_INT, 0, mpi_);
  if (well == 0) return status.ok() ? NcclError("ncclGetUniqueId", "failed on tp_rank 0") : status;
  MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, mpi_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return Done(ncclCommInitRankConfig(&nccl_, size_, id, rank_, &config), "ncclCommInitRankConfig");
}

absl::Status NcclCommunicator::Start(const NcclOptions& options) {
  // Whoever is left alone here would wait in the exchanges below.
  RETURN_IF_ERROR(AgreeOver(mpi_, JoinNccl()));
  algorithms_ = options.algorithms.value_or(DefaultAlgorithms(size_));
  MPI_Bcast(&algorithms_, sizeof(algorithms_), MPI_BYTE, 0, mpi_);
  const size_t others = size_ - 1;
  const size_t part = algorithms_.two_shot == 0 ? 0 : algorithms_.two_shot / size_ + 16;
  const size_t bytes = std::max(others * algorithms_.one_shot, 2 * others * part);
  if (bytes > 0) {
    peers_ = PeerMemory::Open(mpi_, (bytes + 15) / 16 * 16, cuda::FindSumNormRows(size_),
                              options.wait_limit, device_.stream());
  }
  if (rank_ == 0) {
    LogInfo("collectives: NCCL ", NcclVersion(),
            peers_ == nullptr
                ? std::string(" alone")
                : absl::StrCat(", our own up to ",
                               std::max(algorithms_.one_shot, algorithms_.two_shot) >> 10, " KiB"));
  }
  Watchdog::Options watch;
  cudaGetDevice(&watch.device);
  watch.limit = options.limit;
  watch.ask = [this]() -> std::optional<GroupLoss> {
    if (peers_ != nullptr && peers_->stalled()) {
      return GroupLoss{GroupLoss::Cause::kStalledWait, kStalled};
    }
    ncclResult_t result = ncclSuccess;
    ncclCommGetAsyncError(nccl_, &result);
    if (result == ncclSuccess || result == ncclInProgress) return std::nullopt;
    return GroupLoss{GroupLoss::Cause::kNcclError, ncclGetErrorString(result), CodeOf(result)};
  };
  // Kernels wait on: were they let go, the step would end and its tokens might be delivered.
  watch.on_loss = [on_loss = options.on_loss](const GroupLoss& loss) {
    if (on_loss) return on_loss(loss);
    LogError("group lost: ", loss.why);
    // The GPU drops what this process left running on it; mpirun ends the other ranks.
    _exit(1);
  };
  ASSIGN_OR_RETURN(watchdog_, Watchdog::Start(std::move(watch)));
  return absl::OkStatus();
}

absl::Status NcclCommunicator::AllReduceSum(void* data, size_t n, DType type) {
  const size_t bytes = n * DTypeBytes(type);
  const CollectiveStats::Timer timer(stats_, CollectiveOp::kAllReduce, bytes);
  if (type == DType::kF16) return absl::InternalError("all-reduce of f16 on a GPU");
  const bool aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  if (n == 0) return absl::OkStatus();
  if (peers_ != nullptr && aligned &&
      bytes <= std::max(algorithms_.one_shot, algorithms_.two_shot)) {
    const cuda::Type kind = type == DType::kF32 ? cuda::Type::kF32 : cuda::Type::kBF16;
    const auto algorithm =
        bytes <= algorithms_.one_shot ? cuda::SumAlgorithm::kOneShot : cuda::SumAlgorithm::kTwoShot;
    return CudaStatus(
        cuda::AllReduceSum(peers_->group(), algorithm, data, n, kind, device_.stream()),
        "all-reduce");
  }
  return Done(ncclAllReduce(data, data, n, NcclTypeOf(type), ncclSum, nccl_, device_.stream()),
              "ncclAllReduce");
}

bool NcclCommunicator::TakesParts(std::span<const size_t> counts, DType type, size_t most) const {
  if (peers_ == nullptr) return false;
  return std::all_of(counts.begin(), counts.end(), [&](size_t count) {
    const size_t bytes = count * DTypeBytes(type);
    return bytes % sizeof(uint32_t) == 0 && bytes <= most;
  });
}

absl::Status NcclCommunicator::GatherWords(const void* in, std::span<const size_t> counts,
                                           void* out, DType type, int root) {
  std::array<size_t, cuda::kMaxPeers> words = {};
  for (int r = 0; r < size_; ++r) words[r] = counts[r] * DTypeBytes(type) / sizeof(uint32_t);
  return CudaStatus(
      cuda::GatherWords(peers_->group(), in, words.data(), out, root, device_.stream()), "gather");
}

absl::Status NcclCommunicator::AllGather(const void* in, std::span<const size_t> counts, void* out,
                                         DType type) {
  const size_t width = DTypeBytes(type);
  RETURN_IF_ERROR(CheckCounts(counts, size_));
  const CollectiveStats::Timer timer(stats_, CollectiveOp::kAllGather, TotalOf(counts) * width);
  if (TakesParts(counts, type, algorithms_.one_shot)) {
    return GatherWords(in, counts, out, type, cuda::kAllRanks);
  }
  ncclGroupStart();
  auto* at = static_cast<std::byte*>(out);
  for (int r = 0; r < size_; ++r) {
    ncclBroadcast(r == rank_ ? in : at, at, counts[r], NcclTypeOf(type), r, nccl_,
                  device_.stream());
    at += counts[r] * width;
  }
  return Done(ncclGroupEnd(), "ncclBroadcast");
}

absl::Status NcclCommunicator::Gather(const void* in, std::span<const size_t> counts, void* out,
                                      DType type, int root) {
  const size_t width = DTypeBytes(type);
  RETURN_IF_ERROR(CheckCounts(counts, size_));
  const CollectiveStats::Timer timer(stats_, CollectiveOp::kAllGather, counts[rank_] * width);
  // Whatever fits: one crossing, and no thread of NCCL.
  if (peers_ != nullptr &&
      TakesParts(counts, type, peers_->group().buffer_bytes / (size_ - 1) / 16 * 16)) {
    return GatherWords(in, counts, out, type, root);
  }
  ncclGroupStart();
  if (rank_ != root) {
    ncclSend(in, counts[rank_], NcclTypeOf(type), root, nccl_, device_.stream());
    return Done(ncclGroupEnd(), "ncclSend");
  }
  auto* at = static_cast<std::byte*>(out);
  std::byte* mine = nullptr;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) {
      mine = at;
    } else {
      ncclRecv(at, counts[r], NcclTypeOf(type), r, nccl_, device_.stream());
    }
    at += counts[r] * width;
  }
  RETURN_IF_ERROR(Done(ncclGroupEnd(), "ncclRecv"));
  return CudaStatus(
      cudaMemcpyAsync(mine, in, counts[rank_] * width, cudaMemcpyDeviceToDevice, device_.stream()),
      "gather");
}

absl::Status NcclCommunicator::Broadcast(void* data, size_t bytes, int root) {
  const CollectiveStats::Timer timer(stats_, CollectiveOp::kBroadcast, bytes);
  if (bytes == 0) return absl::OkStatus();
  if (peers_ != nullptr && bytes % 4 == 0 && 2 * bytes <= algorithms_.one_shot) {
    return CudaStatus(
        cuda::BroadcastWords(peers_->group(), data, bytes / 4, root, device_.stream()),
        "broadcast");
  }
  return Done(ncclBroadcast(data, data, bytes, ncclUint8, root, nccl_, device_.stream()),
              "ncclBroadcast");
}

}  // namespace

AlgorithmTable DefaultAlgorithms(int size) {
  if (size > cuda::kMaxPeers) return {};
  const uint64_t mib = uint64_t{1} << 20;
  if (size == 2) return {2 * mib, 16 * mib};
  if (size <= 4) return {mib / 2, 8 * mib};
  return {mib / 8, 4 * mib};
}

absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(MPI_Comm comm, Device& device,
                                                                   const NcclOptions& options) {
  auto* const gpu = dynamic_cast<CudaDevice*>(&device);
  if (gpu == nullptr) return absl::InternalError("NCCL between devices that are no GPUs");
  auto out = std::make_unique<NcclCommunicator>(comm, *gpu);
  RETURN_IF_ERROR(out->Start(options));
  return out;
}

}  // namespace rootstock
