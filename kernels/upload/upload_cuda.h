// Pinned memory to the device, past the queue of the copy engine.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace rootstock::kernels::cuda {

// to[bytes] = from[bytes], by a kernel that reads the host's memory in place. Copies of all streams
// in one direction take turns at one engine: what a step needs would wait there for an adapter of
// many megabytes. For up to some hundred KB. to: device memory; from: pinned; both aligned to 16.
cudaError_t Upload(void* to, const void* from, size_t bytes, cudaStream_t stream);

}  // namespace rootstock::kernels::cuda
