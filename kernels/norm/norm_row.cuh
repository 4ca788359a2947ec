// Residual + RMSNorm in bf16 without LoRA for few tokens: a block takes a row, a thread 8 columns.
#pragma once

#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/norm/norm_cuda.h"

namespace rootstock::kernels::cuda {

constexpr int kNormRowThreads = 1024;

// Σ x² over the row, with the bits of norm_tile.cuh: 8 columns, then the 64 of one of its warps,
// then its `blocks` ≤ 32 of `warps` warps, then those. part: a float for each 64 columns.
__device__ __forceinline__ float RowSquares(const float (&x)[8], int blocks, int warps,
                                            float* part) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) squares += x[i] * x[i];
#pragma unroll
  for (int step = 1; step < 8; step *= 2) squares += __shfl_xor_sync(~0u, squares, step);
  if (threadIdx.x % 8 == 0) part[threadIdx.x / 8] = squares;
  __syncthreads();
  const int block = threadIdx.x % 32;
  float of_block = 0.0f;
  if (block < blocks) {
    for (int w = 0; w < warps; ++w) of_block += part[block * warps + w];
  }
  float sum = 0.0f;
  for (int b = 0; b < blocks; ++b) sum += __shfl_sync(~0u, of_block, b);
  return sum;
}

// grid [tokens], block: blocks · warps · 8 threads in whole warps; blocks · warps · 64 ≥ n.
__global__ void __launch_bounds__(kNormRowThreads)
    AddNormRowKernel(AddNormArgs args, int blocks, int warps) {
  __shared__ float part[kNormRowThreads / 8];
  GridLaunchDependents();
  const int column = 8 * threadIdx.x;
  const bool live = column < args.n;
  const size_t at = static_cast<size_t>(blockIdx.x) * args.n + column;
  float x[8] = {}, weight[8] = {};
  // See AddNormTileKernel.
  if (live) Load8(args.weight + column, weight);
  if (live && args.delta != nullptr) LoadL2x8(args.residual + at, x);
  GridDependencyWait();
  if (live && args.delta == nullptr) LoadL2x8(args.residual + at, x);
  if (live && args.delta != nullptr) {
    float delta[8];
    Load8(static_cast<const __nv_bfloat16*>(args.delta) + at, delta);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] += delta[i];
  }
  const bool changed = live && args.delta != nullptr;
  const float squares = RowSquares(x, blocks, warps, part);
  const float inverse = rsqrtf(squares / static_cast<float>(args.n) + args.eps);
  if (changed) Store8(args.residual + at, x);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = weight[i] * (x[i] * inverse);
  if (live) Store8(static_cast<__nv_bfloat16*>(args.out) + at, x);
}

}  // namespace rootstock::kernels::cuda
