#include "worker/ops/backend.h"

#include "worker/device/cpu_device.h"
#include "worker/ops/cpu_ops.h"
#include "worker/ops/host_sampler.h"

namespace rootstock {

Backend MakeCpuBackend(int threads) {
  Backend backend;
  backend.device = std::make_unique<CpuDevice>(threads);
  backend.sampler = std::make_unique<HostSampler>();
  backend.make_ops = [threads, sampler = backend.sampler.get()](const PagedMemory& memory) {
    return std::make_unique<CpuOps>(threads, memory, sampler);
  };
  return backend;
}

}  // namespace rootstock
