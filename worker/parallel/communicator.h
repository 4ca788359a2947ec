// Collectives between the tp_ranks of a group, on buffers of the memory that they compute in.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "common/base/dtype.h"
#include "worker/parallel/collective_stats.h"

namespace rootstock {

namespace kernels::cuda {
struct PeerGroup;
}

// Every rank makes the same calls in the same order. In the host's memory a call is done when it
// returns; on a GPU it is enqueued as an operator is, and can be recorded with them. A failed call
// leaves the group unusable: the caller leaves its step and the process ends. *Step thread only.*
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // data[n] becomes the sum over ranks: the same bits on every rank. In the host's memory and in
  // our own GPU kernels it is taken in f32 in rank order and rounded once, whatever else is summed
  // with an element; NCCL, which takes what is too large for them, has an order and roundings of
  // its own, which depend on size and place. The host's processor sums kF32 alone, a GPU kF32 and
  // kBF16.
  virtual absl::Status AllReduceSum(void* data, size_t n, DType type) = 0;
  // out = concatenation over ranks, in rank order, of each rank's `in`; counts[r] elements of rank
  // r. `in` may be this rank's place in `out`.
  virtual absl::Status AllGather(const void* in, std::span<const size_t> counts, void* out,
                                 DType type) = 0;
  // Same on root only; other ranks pass a null out.
  virtual absl::Status Gather(const void* in, std::span<const size_t> counts, void* out, DType type,
                              int root) = 0;
  virtual absl::Status Broadcast(void* data, size_t bytes, int root) = 0;

  // Tells all ranks how it went on each of them; waits for all. OK where it went well everywhere,
  // else the error of the first that failed, which it names; the same on every rank.
  virtual absl::Status Agree(const absl::Status& mine) = 0;

  // For operators that make a collective themselves, in the other ranks' memory: null where they
  // can't, for all ranks alike. Each is then told by Count, when it was enqueued or recorded.
  virtual const kernels::cuda::PeerGroup* peers() const { return nullptr; }
  virtual void Count(CollectiveOp, size_t /*bytes*/) {}

  // All that was enqueued so far is due: where a lost rank can leave it waiting for ever, the
  // process ends with an error once it is overdue.
  virtual void Watch() {}
  // Asked once what was enqueued has run: an error, from then on, when a rank was waited for in
  // vain, so that results of this rank may be wrong.
  virtual absl::Status Health() const { return absl::OkStatus(); }

  virtual const CollectiveStats& stats() const = 0;
  // Calls that were recorded earlier and ran again.
  virtual void CountReplay(const CollectiveStats& calls) {}
};

}  // namespace rootstock
