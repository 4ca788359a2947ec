// What a warp of the decode kernel does: 16 positions of one KV head against the queries of its
// group, from shared memory (decode_ring.cuh) into registers, on tensor cores.
//
// mma m16n8k16 takes positions (scores) or dims (sums) as rows and the group's queries as the 8
// columns. The order of the inner dimension is free, so each thread loads 16 contiguous bytes:
// lane 4 · g + t holds keys g and g + 8, dims KeyDim(b, t) …, and values of positions 2 · t,
// 2 · t + 1, 2 · t + 8, 2 · t + 9, dims 64 · h + 8 · g ….
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/attention/decode_schedule.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/types.h"

namespace rootstock::kernels::cuda {

constexpr int kMaxGroup = 8;          // query heads a KV head
constexpr float kNoScore = -3.0e38f;  // below every score

template <int kDim>
struct TileRegisters {
  uint4 k[2][kDim / 32];
  uint4 v[4][kDim / 64];
  uint4 q[kDim / 32];
};

// Sums of a tile: lane 4 · g + t has heads 2 · t and 2 · t + 1.
template <int kDim>
struct TileSums {
  float o[kDim / 16][4];  // [4 · h + i]: dims 64 · h + 8 · g + 2 · i (0, 1) and + 1 (2, 3)
  float top[2];           // largest score, times log2(e)
  float sum[2];           // Σ exp2(score - top)
};

// The 8 x 8 matrix of bf16 that a warp holds, transposed.
__device__ __forceinline__ uint32_t Transposed(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// So that lanes of neighbouring g read different banks (decode_ring.cuh).
__device__ __forceinline__ int KeyDim(int b, int t) { return 64 * (b / 2) + 16 * t + 8 * (b % 2); }

// q: of the group's first head; heads past the group are 0.
template <int kDim>
__device__ __forceinline__ void LoadQueries(const __nv_bfloat16* q, int group,
                                            TileRegisters<kDim>& r) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int b = 0; b < kDim / 32; ++b) {
    r.q[b] = make_uint4(0, 0, 0, 0);
    if (g < group) r.q[b] = *reinterpret_cast<const uint4*>(q + g * kDim + KeyDim(b, t));
  }
}

// score[j]: position g + 8 · (j / 2), head 2 · t + j % 2; times `scale`, absent ones kNoScore.
template <int kDim>
__device__ __forceinline__ void TileScores(const TileRegisters<kDim>& r, int valid, float scale,
                                           float (&score)[4]) {
  float even[4] = {}, odd[4] = {};
#pragma unroll
  for (int b = 0; b < kDim / 32; ++b) {
    const uint4 x = r.k[0][b], y = r.k[1][b], q = r.q[b];
    MmaBf16(even, x.x, y.x, x.y, y.y, q.x, q.y);
    MmaBf16(odd, x.z, y.z, x.w, y.w, q.z, q.w);
  }
  const int g = threadIdx.x % 32 / 4;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    score[j] = g + 4 * (j & 2) < valid ? (even[j] + odd[j]) * scale : kNoScore;
  }
}

// Scores to weights (bf16, as mma's columns), their largest and their sum.
template <int kDim>
__device__ __forceinline__ void TileWeights(const float (&score)[4], TileSums<kDim>& sums,
                                            uint32_t (&weights)[2]) {
  float p[4];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float top = fmaxf(score[j], score[j + 2]);
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    }
    p[j] = exp2f(score[j] - top);
    p[j + 2] = exp2f(score[j + 2] - top);
    float sum = p[j] + p[j + 2];
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    sums.top[j] = top;
    sums.sum[j] = sum;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(p[2 * i], p[2 * i + 1]);
    weights[i] = Transposed(*reinterpret_cast<const uint32_t*>(&pair));
  }
}

template <int kDim>
__device__ __forceinline__ void TileValues(const TileRegisters<kDim>& r,
                                           const uint32_t (&weights)[2], TileSums<kDim>& sums) {
#pragma unroll
  for (int h = 0; h < kDim / 64; ++h) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = (&r.v[j][h].x)[i];
      float (&o)[4] = sums.o[4 * h + i];
      o[0] = o[1] = o[2] = o[3] = 0.0f;
      MmaBf16(o, __byte_perm(v[0], v[1], 0x5410), __byte_perm(v[0], v[1], 0x7632),
              __byte_perm(v[2], v[3], 0x5410), __byte_perm(v[2], v[3], 0x7632), weights[0],
              weights[1]);
    }
  }
}

}  // namespace rootstock::kernels::cuda
