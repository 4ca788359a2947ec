#include "worker/parallel/peer_memory.h"

#include <vector>

#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/device/cuda_device.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

// Whether all ranks share a host.
bool OnOneHost(MPI_Comm comm, int size) {
  MPI_Comm local = MPI_COMM_NULL;
  MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
  int local_size = 0;
  MPI_Comm_size(local, &local_size);
  MPI_Comm_free(&local);
  return local_size == size;
}

// The same on every rank.
bool AllWell(MPI_Comm comm, const absl::Status& mine) {
  if (!mine.ok()) {
    LogWarning("peer memory: ", mine.message());
    cudaGetLastError();  // else the next look at launches finds it: the group does without
  }
  int well = mine.ok() ? 1 : 0, all = 0;
  MPI_Allreduce(&well, &all, 1, MPI_INT, MPI_MIN, comm);
  return all == 1;
}

}  // namespace

std::unique_ptr<PeerMemory> PeerMemory::Open(MPI_Comm comm, size_t buffer_bytes,
                                             const cuda::SumNormRows& rows,
                                             std::chrono::nanoseconds limit, cudaStream_t stream) {
  std::unique_ptr<PeerMemory> out(new PeerMemory);
  cuda::PeerGroup& group = out->group_;
  MPI_Comm_rank(comm, &group.rank);
  MPI_Comm_size(comm, &group.size);
  if (buffer_bytes == 0 || group.size > cuda::kMaxPeers || !OnOneHost(comm, group.size)) {
    return nullptr;
  }
  group.limit_ns = static_cast<uint64_t>(limit.count());
  MPI_Allreduce(rows.most.data(), out->sum_norm_.most.data(), rows.most.size(), MPI_INT32_T,
                MPI_MIN, comm);
  group.sum_norm = &out->sum_norm_;
  absl::Status status = out->Allocate(buffer_bytes, stream);
  cudaIpcMemHandle_t mine = {};
  if (status.ok()) status = CudaStatus(cudaIpcGetMemHandle(&mine, group.inbox[group.rank]), "IPC");
  if (!AllWell(comm, status)) return nullptr;
  std::vector<cudaIpcMemHandle_t> all(group.size);
  MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, all.data(), sizeof(mine), MPI_BYTE, comm);
  if (AllWell(comm, out->OpenInboxes(all.data()))) return out;
  out->CloseInboxes();  // on all ranks before one frees its own
  MPI_Barrier(comm);
  return nullptr;
}

absl::Status PeerMemory::Allocate(size_t buffer_bytes, cudaStream_t stream) {
  group_.buffer_bytes = buffer_bytes;
  void* memory = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&memory, cuda::InboxBytes(buffer_bytes)), "inbox"));
  group_.inbox[group_.rank] = static_cast<std::byte*>(memory);
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&memory, sizeof(cuda::PeerState)), "inbox"));
  group_.state = static_cast<cuda::PeerState*>(memory);
  RETURN_IF_ERROR(
      CudaStatus(cudaHostAlloc(&memory, 2 * sizeof(uint32_t), cudaHostAllocMapped), "inbox"));
  words_ = static_cast<uint32_t*>(memory);
  words_[0] = words_[1] = 0;
  group_.abort = words_;
  group_.stalled = words_ + 1;
  RETURN_IF_ERROR(CudaStatus(cuda::ClearInbox(group_, stream), "inbox"));
  return CudaStatus(cudaStreamSynchronize(stream), "inbox");
}

absl::Status PeerMemory::OpenInboxes(const cudaIpcMemHandle_t* handles) {
  for (int r = 0; r < group_.size; ++r) {
    if (r == group_.rank) continue;
    void* memory = nullptr;
    RETURN_IF_ERROR(CudaStatus(
        cudaIpcOpenMemHandle(&memory, handles[r], cudaIpcMemLazyEnablePeerAccess), "IPC"));
    group_.inbox[r] = static_cast<std::byte*>(memory);
  }
  return absl::OkStatus();
}

void PeerMemory::CloseInboxes() {
  for (int r = 0; r < group_.size; ++r) {
    if (r == group_.rank || group_.inbox[r] == nullptr) continue;
    cudaIpcCloseMemHandle(group_.inbox[r]);
    group_.inbox[r] = nullptr;
  }
}

PeerMemory::~PeerMemory() {
  CloseInboxes();
  cudaFree(group_.inbox[group_.rank]);
  cudaFree(group_.state);
  cudaFreeHost(words_);
}

}  // namespace rootstock
