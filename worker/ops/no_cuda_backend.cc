// Stands in for cuda_backend.cc in builds without CUDA.
#include "common/base/status.h"
#include "worker/ops/backend.h"

namespace rootstock {
namespace {

absl::Status NoCuda() {
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInvalidArgument, "device",
                   "cuda", "this build has no CUDA backend");
}

}  // namespace

absl::StatusOr<Backend> MakeCudaBackend(int, DType) { return NoCuda(); }
absl::StatusOr<uint64_t> FreeCudaBytes(int) { return NoCuda(); }
int NumCudaDevices() { return 0; }

}  // namespace rootstock
