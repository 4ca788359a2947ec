// Launches that may overlap the kernel before them (pdl.cuh says what such a kernel must do).
// Included by .cu files.
#pragma once

#include <cuda_runtime.h>

#include <utility>

namespace rootstock::kernels::cuda {

// As kernel<<<grid, block, shared_bytes, stream>>>(args…), but the kernel may start before the one
// ahead of it in the stream ends; captured in a graph as a programmatic edge. `cluster`: blocks of
// a cluster along x. Before sm_90 it is a plain launch (and cluster must be 1).
template <typename... Params, typename... Args>
cudaError_t LaunchDependent(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                            cudaStream_t stream, unsigned cluster, Args&&... args) {
  int device = 0;
  int major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (major >= 9) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = cluster;
    attributes[count].val.clusterDim.y = 1;
    attributes[count++].val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

}  // namespace rootstock::kernels::cuda
