#include "worker/parallel/collective_stats.h"

#include <algorithm>

namespace rootstock {

const char* CollectiveOpName(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllReduce:
      return "allreduce";
    case CollectiveOp::kAllGather:
      return "allgather";
    case CollectiveOp::kBroadcast:
      return "broadcast";
  }
  return "";
}

double CollectiveStats::seconds() const {
  double sum = 0;
  for (const CollectiveCounters& c : counters_) sum += c.seconds;
  return sum;
}

OwnWork::OwnWork(const CollectiveStats& stats)
    : stats_(stats), collectives_(stats.seconds()), start_(std::chrono::steady_clock::now()) {}

uint64_t OwnWork::Microseconds() const {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
  const double own = passed.count() - (stats_.seconds() - collectives_);
  return static_cast<uint64_t>(std::max(0.0, own) * 1e6);
}

CollectiveStats::Timer::Timer(CollectiveStats& stats, CollectiveOp op, size_t bytes)
    : counters_(stats.counters_[static_cast<int>(op)]), start_(std::chrono::steady_clock::now()) {
  ++counters_.calls;
  counters_.bytes += bytes;
}

CollectiveStats::Timer::~Timer() {
  counters_.seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

}  // namespace rootstock
