// Collectives between the tp_ranks of a group. Host memory; device buffers come with `nccl`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace rootstock {

// Every rank makes the same calls in the same order. A failed call leaves the group unusable: the
// caller leaves its step and the process ends. *Step thread only.*
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // data[n] becomes the sum over ranks, the same bits on every rank.
  virtual absl::Status AllReduceSum(std::span<float> data) = 0;
  // out = concatenation over ranks, in rank order, of each rank's `in`; counts[r] elements of
  // rank r, out.size() their sum.
  virtual absl::Status AllGather(std::span<const float> in, std::span<const size_t> counts,
                                 std::span<float> out) = 0;
  // Same on root only; other ranks pass an empty out.
  virtual absl::Status Gather(std::span<const float> in, std::span<const size_t> counts,
                              std::span<float> out, int root) = 0;
  virtual absl::Status Broadcast(std::span<std::byte> data, int root) = 0;
};

// What collectives did since start, for metrics.
struct CollectiveCounters {
  uint64_t calls = 0;
  uint64_t bytes = 0;
  double seconds = 0;
};

}  // namespace rootstock
