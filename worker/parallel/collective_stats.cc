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

CollectiveStats CollectiveStats::Since(const CollectiveStats& earlier) const {
  CollectiveStats out;
  for (size_t i = 0; i < counters_.size(); ++i) {
    out.counters_[i].calls = counters_[i].calls - earlier.counters_[i].calls;
    out.counters_[i].bytes = counters_[i].bytes - earlier.counters_[i].bytes;
  }
  return out;
}

void CollectiveStats::Add(const CollectiveStats& other) {
  for (size_t i = 0; i < counters_.size(); ++i) {
    counters_[i].calls += other.counters_[i].calls;
    counters_[i].bytes += other.counters_[i].bytes;
    counters_[i].seconds += other.counters_[i].seconds;
  }
}

void CollectiveStats::Count(CollectiveOp op, size_t bytes) {
  CollectiveCounters& counters = counters_[static_cast<int>(op)];
  ++counters.calls;
  counters.bytes += bytes;
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
