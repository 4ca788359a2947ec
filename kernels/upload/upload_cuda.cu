#include <algorithm>
#include <cstdint>

#include "kernels/upload/upload_cuda.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr size_t kPiece = sizeof(uint4);
constexpr size_t kMaxBlocks = 64;

// to[i] = from[i], pieces of 16 bytes and the bytes behind them. grid [blocks]. Reads of the host
// take a microsecond or two each: all of a step's are under way at once.
__global__ void __launch_bounds__(kThreads)
    UploadKernel(const uint4* from, uint4* to, size_t pieces, int tail_bytes) {
  const size_t first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  for (size_t i = first; i < pieces; i += step) to[i] = __ldcv(from + i);
  if (first < static_cast<size_t>(tail_bytes)) {
    reinterpret_cast<uint8_t*>(to + pieces)[first] =
        __ldcv(reinterpret_cast<const uint8_t*>(from + pieces) + first);
  }
}

}  // namespace

cudaError_t Upload(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const size_t pieces = bytes / kPiece;
  const size_t blocks = std::clamp<size_t>((pieces + kThreads - 1) / kThreads, 1, kMaxBlocks);
  UploadKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const uint4*>(from), static_cast<uint4*>(to), pieces,
      static_cast<int>(bytes % kPiece));
  return cudaGetLastError();
}

}  // namespace rootstock::kernels::cuda
