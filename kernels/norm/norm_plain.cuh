// Residual + RMSNorm of any width and type: one block a row.
#pragma once

#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/lora_device.cuh"
#include "kernels/norm/norm_cuda.h"

namespace rootstock::kernels::cuda {

constexpr int kNormThreads = 256;

// Sum over the block, the same in every thread; the order is fixed.
__device__ __forceinline__ float BlockSum(float x) {
  __shared__ float part[kNormThreads / 32];
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kNormThreads / 32; ++i) sum += part[i];
  return sum;
}

// grid [rows or tokens]; n floats of shared memory hold the row's residual.
template <typename T, bool kLora>
__global__ void __launch_bounds__(kNormThreads)
    AddNormPlainKernel(AddNormArgs args, LoraStep step, LoraTargets targets, int splits) {
  extern __shared__ float x[];
  GridDependencyWait();
  GridLaunchDependents();
  const bool some = args.rows != nullptr;
  const int token = some ? args.rows[blockIdx.x] : TokenAt<kLora>(step, blockIdx.x);
  const int entry = kLora && some ? step.row_of[token] : blockIdx.x;
  const size_t out_row = some ? blockIdx.x : token;
  const size_t at = static_cast<size_t>(token) * args.n;
  const T* delta = static_cast<const T*>(args.delta);
  float squares = 0.0f;
  for (int i = threadIdx.x; i < args.n; i += kNormThreads) {
    float value = args.residual[at + i];
    if (delta != nullptr) {
      float added = ToFloat(delta[at + i]);
      if (kLora) added += LoraDelta<T>(step, targets, splits, entry, i);
      value += added;
      if (!some) args.residual[at + i] = value;
    }
    x[i] = value;
    squares += value * value;
  }
  const float inverse = rsqrtf(BlockSum(squares) / static_cast<float>(args.n) + args.eps);
  T* out = static_cast<T*>(args.out) + out_row * args.n;
  for (int i = threadIdx.x; i < args.n; i += kNormThreads) {
    out[i] = FromFloat<T>(args.weight[i] * (x[i] * inverse));
  }
}

}  // namespace rootstock::kernels::cuda
