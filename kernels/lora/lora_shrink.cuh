// What the shrink kernels share: v [token, rank] = Σ_k x [token, k] · A [rank, k] in bf16 on tensor
// cores, sums in f32. A block's 8 warps share out the inputs, in a way that depends on `in` alone,
// and add their sums in order. A lane loads 16 bytes of a row of A and of two rows of x: with
// inputs permuted alike in both, these are two mma's operands.
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/lora_device.cuh"

namespace rootstock::kernels::cuda {

constexpr int kShrinkThreads = 256;
constexpr int kShrinkWarps = kShrinkThreads / 32;

// 16 bytes of a row at input k, zeros beyond `end` or without a row.
__device__ __forceinline__ uint4 LoadX(const __nv_bfloat16* row, int k, int end) {
  uint4 x = {};
  if (row != nullptr && k < end) x = *reinterpret_cast<const uint4*>(row + k);
  return x;
}
__device__ __forceinline__ uint4 LoadA(const __nv_bfloat16* row, int k, int end) {
  uint4 a = {};
  if (row != nullptr && k < end) a = LoadConstant16(row + k);
  return a;
}

// d += 32 inputs of 16 members (x: rows g and g + 8) times 8 ranks (a).
__device__ __forceinline__ void AddInputs(const uint4 (&x)[2], const uint4& a, float (&d)[4]) {
  MmaBf16(d, x[0].x, x[1].x, x[0].y, x[1].y, a.x, a.y);
  MmaBf16(d, x[0].z, x[1].z, x[0].w, x[1].w, a.z, a.w);
}

}  // namespace rootstock::kernels::cuda
