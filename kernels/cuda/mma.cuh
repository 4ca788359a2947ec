// Tensor-core products of bf16 by single warps, from sm_80 on.
#pragma once

#include <cstdint>

namespace rootstock::kernels::cuda {

// d [16, 8] += a [16, 16] · b [16, 8] in f32. With g = lane / 4 and q = lane % 4 a lane holds
//   a: (row g, k 2q), (g + 8, 2q), (g, 2q + 8), (g + 8, 2q + 8), each with its right neighbour;
//   b: (k 2q, column g), (2q + 8, g), each with the one below;
//   d: (row g, column 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1).
__device__ __forceinline__ void MmaBf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                        uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace rootstock::kernels::cuda
