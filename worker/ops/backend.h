// What a tp_rank computes on: a device with its operators and its sampler.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "worker/device/device.h"
#include "worker/ops/ops.h"
#include "worker/ops/token_sampler.h"

namespace rootstock {

// Owns all of it. *Step thread only.*
struct Backend {
  std::unique_ptr<Device> device;
  std::unique_ptr<TokenSampler> sampler;
  DType compute_type = DType::kF32;  // of activations, KV and adapters
  bool asynchronous = false;         // operators return before they have run
  uint64_t free_bytes = 0;           // of the device when this was made
  // Operators over these pages; they borrow device and sampler.
  std::function<std::unique_ptr<Ops>(const PagedMemory& memory)> make_ops;
};

// threads: of every parallel loop.
Backend MakeCpuBackend(int threads);

// On the host's GPU number `index` with the compute type kF32 or kBF16. FAILED_PRECONDITION when
// this build has no CUDA, there is no such GPU, or its driver is too old, with the numbers.
absl::StatusOr<Backend> MakeCudaBackend(int index, DType compute_type);

// Bytes of the GPU's memory that are free; errors as MakeCudaBackend's.
absl::StatusOr<uint64_t> FreeCudaBytes(int index);

// GPUs of this host; 0 when this build has no CUDA.
int NumCudaDevices();

}  // namespace rootstock
