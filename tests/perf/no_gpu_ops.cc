#include "common/base/status.h"
#include "tests/perf/gpu_ops.h"

namespace rootstock {

absl::StatusOr<std::vector<BenchResult>> RunOpsBench(const OpsBenchOptions&) {
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInvalidArgument, "ops", "cuda",
                   "this build has no CUDA kernels with their benches");
}

}  // namespace rootstock
