// What collectives did since start, for metrics.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace rootstock {

struct CollectiveCounters {
  uint64_t calls = 0;
  uint64_t bytes = 0;
  double seconds = 0;
};

enum class CollectiveOp { kAllReduce, kAllGather, kBroadcast };
constexpr std::array<CollectiveOp, 3> kAllCollectiveOps = {
    CollectiveOp::kAllReduce, CollectiveOp::kAllGather, CollectiveOp::kBroadcast};
// "allreduce", "allgather" (Gather counts there too), "broadcast"
const char* CollectiveOpName(CollectiveOp op);

// *Step thread only.*
class CollectiveStats {
 public:
  const CollectiveCounters& of(CollectiveOp op) const { return counters_[static_cast<int>(op)]; }

  double seconds() const;  // of all
  // Calls and bytes since `earlier`, a copy of these; no seconds.
  CollectiveStats Since(const CollectiveStats& earlier) const;
  void Add(const CollectiveStats& other);
  // A call that took no time of the host's.
  void Count(CollectiveOp op, size_t bytes);

  // Counts one call over its own lifetime.
  class Timer {
   public:
    Timer(CollectiveStats& stats, CollectiveOp op, size_t bytes);
    ~Timer();
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    CollectiveCounters& counters_;
    const std::chrono::steady_clock::time_point start_;
  };

 private:
  std::array<CollectiveCounters, 3> counters_{};
};

// A rank's own work since construction: the time that passed, less its collectives and so its waits
// for other ranks. A rank that works longer than the others arrives later by the difference, and no
// two clocks are compared. *Step thread only.*
class OwnWork {
 public:
  // Borrowed.
  explicit OwnWork(const CollectiveStats& stats);
  uint64_t Microseconds() const;

 private:
  const CollectiveStats& stats_;
  const double collectives_;  // seconds before
  const std::chrono::steady_clock::time_point start_;
};

}  // namespace rootstock
