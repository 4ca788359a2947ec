#include <utility>

#include "common/base/status.h"
#include "worker/device/cuda_device.h"
#include "worker/ops/backend.h"
#include "worker/ops/cuda_ops.h"
#include "worker/ops/cuda_sampler.h"

namespace rootstock {

absl::StatusOr<Backend> MakeCudaBackend(int index, DType compute_type) {
  ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device, CudaDevice::Create(index));
  std::string error;
  std::shared_ptr<kernels::cuda::Linear> linear = kernels::cuda::MakeLinear(&error);
  if (linear == nullptr) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInternal, "cuBLASLt", "cuda",
                     error);
  }
  Backend backend;
  ASSIGN_OR_RETURN(backend.free_bytes, device->FreeBytes());
  backend.compute_type = compute_type;
  backend.asynchronous = true;
  auto sampler = std::make_unique<CudaSampler>(*device);
  backend.make_ops = [device = device.get(), sampler = sampler.get(), linear,
                      compute_type](const PagedMemory& memory) {
    return std::make_unique<CudaOps>(*device, compute_type, memory, *sampler, linear);
  };
  backend.device = std::move(device);
  backend.sampler = std::move(sampler);
  return backend;
}

absl::StatusOr<uint64_t> FreeCudaBytes(int index) { return CudaDevice::FreeBytesOf(index); }
int NumCudaDevices() { return CudaDevice::Count(); }

}  // namespace rootstock
