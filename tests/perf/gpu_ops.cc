#include "tests/perf/gpu_ops.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/perf/gpu_ops_parts.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

absl::Status NoGpu(const std::string& why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInvalidArgument, "ops", "cuda",
                   why);
}

}  // namespace

absl::StatusOr<std::vector<BenchResult>> RunOpsBench(const OpsBenchOptions& options) {
  Ceilings ceilings;
  if (const std::string why = MeasureCeilings(0, &ceilings); !why.empty()) return NoGpu(why);
  std::string error;
  const std::unique_ptr<cuda::Linear> linear = cuda::MakeLinear(&error);
  if (linear == nullptr) return NoGpu(error);
  std::vector<BenchResult> results = CeilingResults(ceilings);
  const auto asked = [&](const char* part) {
    return options.parts.empty() ||
           std::find(options.parts.begin(), options.parts.end(), part) != options.parts.end();
  };
  if (asked("lora")) BenchLoraSites(ceilings, *linear, /*prefill=*/false, results);
  if (asked("lora-prefill")) BenchLoraSites(ceilings, *linear, /*prefill=*/true, results);
  if (asked("attention")) BenchAttention(ceilings, results);
  if (asked("sampler")) BenchSampler(ceilings, results);
  if (asked("norms")) BenchNorms(ceilings, *linear, results);
  if (asked("equal-bits")) BenchEqualBits(results);
  if (const cudaError_t broken = cudaDeviceSynchronize(); broken != cudaSuccess) {
    return absl::InternalError(absl::StrCat("ops: ", cudaGetErrorString(broken)));
  }
  return results;
}

}  // namespace rootstock
