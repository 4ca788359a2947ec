#include "tests/perf/gpu_ops.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/linear/lt_matmul.h"
#include "tests/perf/gpu_ops_parts.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

// FLOP a second of cuBLASLt's first choice.
double GemmRate(cuda::LtMatmul& lt) {
  constexpr int kSize = 8192, kRepeats = 3;
  const cuda::TestCase c(cuda::Type::kBF16, cuda::Type::kBF16, kSize, kSize, kSize, false);
  const double us =
      MicrosecondsEach(kRepeats, [&](int, cudaStream_t stream) { return lt.Run(c.args, stream); });
  return 2e6 * kSize * kSize * kSize / us;
}

absl::Status NoGpu(const std::string& why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInvalidArgument, "ops", "cuda",
                   why);
}

}  // namespace

absl::StatusOr<std::vector<BenchResult>> RunOpsBench(const OpsBenchOptions& options) {
  if (const cudaError_t error = cudaSetDevice(0); error != cudaSuccess) {
    return NoGpu(absl::StrCat(
        "measures on a GPU, and there is none that can be used: ", cudaGetErrorString(error),
        "; nvidia-smi shows the driver and what it has"));
  }
  std::string error;
  const std::unique_ptr<cuda::Linear> linear = cuda::MakeLinear(&error);
  if (linear == nullptr) return NoGpu(error);
  const std::unique_ptr<cuda::LtMatmul> lt = cuda::LtMatmul::Create(&error);
  if (lt == nullptr) return NoGpu(error);
  const Ceilings ceilings{cuda::ReadBandwidth() / 1e6, GemmRate(*lt) / 1e6};
  std::vector<BenchResult> results = {
      {"", "read bandwidth, 4 GiB", ceilings.read_bytes_per_us / 1e6, 0, "higher", "TB/s"},
      {"", "bf16 GEMM 8192^3", ceilings.flops_per_us / 1e6, 0, "higher", "TFLOP/s"},
  };
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
