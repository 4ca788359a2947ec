#include "worker/parallel/collective_stats.h"

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
