#include "worker/ops/pinned_ids.h"

#include <algorithm>

#include "common/base/status.h"
#include "worker/device/cuda_device.h"

namespace rootstock {

PinnedIds::~PinnedIds() {
  for (const Piece& piece : pieces_) {
    if (piece.read != nullptr) cudaEventSynchronize(piece.read);
    if (piece.read != nullptr) cudaEventDestroy(piece.read);
    if (piece.ids != nullptr) cudaFreeHost(piece.ids);
  }
}

absl::Status PinnedIds::Create() {
  for (Piece& piece : pieces_) {
    if (piece.ids != nullptr) continue;
    void* ids = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&ids, kCapacity * sizeof(int32_t)), "token ids"));
    piece.ids = static_cast<int32_t*>(ids);
    RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&piece.read, cudaEventDisableTiming), "token ids"));
  }
  return absl::OkStatus();
}

absl::StatusOr<const int32_t*> PinnedIds::Put(std::span<const int32_t> ids, cudaStream_t stream) {
  if (pieces_[filling_].used + ids.size() > kCapacity) {
    RETURN_IF_ERROR(CudaStatus(cudaEventRecord(pieces_[filling_].read, stream), "token ids"));
    filling_ = 1 - filling_;
    // Read long ago, but where prompts come faster than they run.
    RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(pieces_[filling_].read), "token ids"));
    pieces_[filling_].used = 0;
  }
  Piece& piece = pieces_[filling_];
  int32_t* const out = piece.ids + piece.used;
  std::copy(ids.begin(), ids.end(), out);
  piece.used += ids.size();
  return out;
}

}  // namespace rootstock
