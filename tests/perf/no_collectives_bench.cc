// Stands in for collectives_bench.cc in builds without CUDA or NCCL.
#include "tests/perf/collectives_bench.h"
#include "worker/parallel/make_communicator.h"

namespace rootstock {

absl::StatusOr<std::vector<BenchResult>> RunCollectivesBench(const CollectivesBenchOptions&) {
  return CanJoinGpus();
}

}  // namespace rootstock
