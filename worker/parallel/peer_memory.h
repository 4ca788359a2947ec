// The inboxes through which the GPUs of one host reach each other.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/collective/all_reduce_cuda.h"
#include "kernels/collective/sum_norm_rows.h"

namespace rootstock {

// Owns this rank's inbox, outside the slab, and the words that host and GPU share; opens the
// others'. *Step thread only*, but for Abort and stalled.
class PeerMemory {
 public:
  // Every rank calls it, with equal buffer_bytes, a multiple of 16, and what its own GPU takes at
  // once. Null, on all ranks alike, where some rank does not reach another's memory.
  static std::unique_ptr<PeerMemory> Open(MPI_Comm comm, size_t buffer_bytes,
                                          const kernels::cuda::SumNormRows& rows,
                                          std::chrono::nanoseconds limit, cudaStream_t stream);
  ~PeerMemory();

  const kernels::cuda::PeerGroup& group() const { return group_; }
  // Ends the waits of kernels that run.
  void Abort() { *const_cast<volatile uint32_t*>(words_) = 1; }
  // A kernel waited for too long.
  bool stalled() const { return const_cast<volatile uint32_t*>(words_)[1] != 0; }

 private:
  PeerMemory() = default;
  // What needs nobody else.
  absl::Status Allocate(size_t buffer_bytes, cudaStream_t stream);
  absl::Status OpenInboxes(const cudaIpcMemHandle_t* handles);
  void CloseInboxes();

  kernels::cuda::PeerGroup group_;
  kernels::cuda::SumNormRows sum_norm_;  // the least of all ranks'
  uint32_t* words_ = nullptr;            // pinned: [abort, stalled]
};

}  // namespace rootstock
