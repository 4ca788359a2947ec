// Residual + RMSNorm in bf16 for few tokens: a block takes a row, or a cluster does, so that blocks
// whose registers hold B find room beside the GEMM. A thread takes 8 columns, a warp 256.
#pragma once

#include <type_traits>

#include "kernels/cuda/copy.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/expand_row.cuh"
#include "kernels/norm/norm_cuda.h"

namespace rootstock::kernels::cuda {

constexpr int kNormRowThreads = 1024;
constexpr int kNormRowLoraThreads = 128;  // of a block, whose registers hold B

// Sums over 64 columns each of a row. The blocks of a cluster send each other theirs.
class RowParts {
 public:
  // All threads must call it. `warp`: the warp's place in the cluster.
  __device__ __forceinline__ RowParts(int warp, int cluster) : warp_(warp), cluster_(cluster) {
    if (cluster == 1) return;
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      BarrierInit(SharedAddress(&Shared().full), 1);
      BarrierExpect(SharedAddress(&Shared().full), cluster * blockDim.x / 32 * 4 * sizeof(float));
      BarrierInitFence();
    }
    ClusterArrive();
    ClusterWait();
#endif
  }

  // sum: of the lanes of a quad's place, the same in each. Returns the row's when all have come.
  __device__ __forceinline__ const float* Share(float sum) const {
    float of_warp[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) of_warp[i] = __shfl_sync(~0u, sum, i);
    const int lane = threadIdx.x % 32;
    float* at = Shared().part + 4 * warp_;
#if __CUDA_ARCH__ >= 900
    if (cluster_ > 1) {
      const uint32_t full = SharedAddress(&Shared().full);
      if (lane < cluster_) {
        SendRemote(RemoteAddress(SharedAddress(at), lane), RemoteAddress(full, lane), of_warp);
      }
      BarrierWait(full, 0);
      return Shared().part;
    }
#endif
    if (lane == 0)
      *reinterpret_cast<float4*>(at) = {of_warp[0], of_warp[1], of_warp[2], of_warp[3]};
    __syncthreads();
    return Shared().part;
  }

 private:
  struct Memory {
    alignas(16) float part[kNormRowThreads / 8];
    uint64_t full;  // barrier
  };
  static __device__ __forceinline__ Memory& Shared() {
    __shared__ Memory memory;
    return memory;
  }

  int warp_, cluster_;
};

// Σ x² over the row, with the bits of norm_tile.cuh: 8 columns, then the 64 of one of its warps,
// then its `blocks` ≤ 32 of `warps` warps, then those.
__device__ __forceinline__ float RowSquares(const float (&x)[8], int blocks, int warps,
                                            const RowParts& parts) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) squares += x[i] * x[i];
#pragma unroll
  for (int step = 4; step < 32; step *= 2) squares += __shfl_xor_sync(~0u, squares, step);
  const float* part = parts.Share(squares);
  const int block = threadIdx.x % 32;
  float of_block = 0.0f;
  if (block < blocks) {
    for (int w = 0; w < warps; ++w) of_block += part[block * warps + w];
  }
  float sum = 0.0f;
  for (int b = 0; b < blocks; ++b) sum += __shfl_sync(~0u, of_block, b);
  return sum;
}

// Without LoRA, in ExpandRow's place.
struct RowAt {
  __device__ RowAt(const LoraStep&, const LoraTargets&, int, int row, int) : token_(row) {}
  __device__ int token() const { return token_; }
  __device__ void LoadFirst(const LoraStep&) const {}
  __device__ void Sum(const LoraStep&, const LoraTargets&, int, float (&)[8]) const {}

  int token_;
};

// grid [tokens · cluster], a cluster: blocks · warps · 8 threads in whole warps; blocks · warps ·
// 64 ≥ n.
template <bool kLora>
__global__ void __launch_bounds__(kLora ? kNormRowLoraThreads : kNormRowThreads, kLora ? 4 : 1)
    AddNormRowKernel(AddNormArgs args, LoraStep step, LoraTargets targets, int splits, int blocks,
                     int warps, int cluster) {
  GridLaunchDependents();
  const int warp = (blockIdx.x % cluster * blockDim.x + threadIdx.x) / 32;
  const RowParts parts(warp, cluster);
  const int column = ExpandRow::Column(warp);
  const bool live = column < args.n;
  std::conditional_t<kLora, ExpandRow, RowAt> row(step, targets, args.n, blockIdx.x / cluster,
                                                  warp);
  row.LoadFirst(step);
  const size_t at = static_cast<size_t>(row.token()) * args.n + column;
  float x[8] = {}, weight[8] = {};
  // See AddNormTileKernel.
  if (live && kLora) PrefetchL1(args.weight + column);  // registers are short
  if (live && !kLora) Load8(args.weight + column, weight);
  if (live && args.delta != nullptr) LoadL2x8(args.residual + at, x);
  GridDependencyWait();
  if (live && args.delta == nullptr) LoadL2x8(args.residual + at, x);
  float lora[8] = {};
  uint4 delta = {};
  if (live && args.delta != nullptr) {
    delta = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(args.delta) + at);
  }
  row.Sum(step, targets, splits, lora);
  if (live && kLora) Load8(args.weight + column, weight);
  if (live && args.delta != nullptr) {
    float added[8];
    Unpack8(delta, added);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (kLora) added[i] += lora[i];
      x[i] += added[i];
    }
  }
  const bool changed = live && args.delta != nullptr;
  const float squares = RowSquares(x, blocks, warps, parts);
  const float inverse = rsqrtf(squares / static_cast<float>(args.n) + args.eps);
  if (changed) Store8(args.residual + at, x);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = weight[i] * (x[i] * inverse);
  if (live) Store8(static_cast<__nv_bfloat16*>(args.out) + at, x);
}

}  // namespace rootstock::kernels::cuda
