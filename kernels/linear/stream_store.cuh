// The weight-streaming matrix product: its parameters, and the way of a block's sums to its
// outputs.
#pragma once

#include <cuda_bf16.h>

#include "kernels/linear/hopper.cuh"

namespace rootstock::kernels::cuda {

constexpr int kStreamThreads = 160;  // four multiplying warps, one that copies
constexpr int kBoxK = 64;            // of a box: 128 bytes, the swizzle's span
constexpr int kBoxRowBytes = 128;
constexpr int kMmaRows = 64;
constexpr int kMaxStages = 16;
constexpr int kStagePitch = kMmaRows + 4;  // floats; free of bank conflicts

struct StreamParams {
  const float* bias = nullptr;  // [n]; null: none
  void* out = nullptr;          // [m, n], f32 or bf16
  bool out_f32 = false;
  int m = 0;
  int n = 0;
  int boxes = 0;        // of the whole k
  int rows = 0;         // R, a multiple of 8
  int tiles = 0;        // of R rows
  int split = 1;        // blocks of a cluster that share k; above 1 a block has one tile
  int stage_boxes = 0;  // boxes of w and of x a stage
  int stages = 0;       // ≤ kMaxStages
  int trigger = 0;      // the next kernel may start this many stages before the last one is loaded
  int sums_offset = 0;  // of the sums in shared memory: over the ring where it is not used any more
  int sums_blocks = 0;  // MB, or 1: the sums of how many instructions have room at once
  int barrier_offset = 0;
};

// Sums of instruction `block` of the tile to shared memory: [N][kStagePitch] floats, row by row.
template <int N>
__device__ __forceinline__ void PutSums(const float (&sums)[N / 2], float* to) {
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
    to[token * kStagePitch + row + i / 2 % 2 * 8] = sums[i];
  }
}

// Output `from` alone; split: of all ranks, added in rank order.
__device__ __forceinline__ float GatherOne(int split, const float* from) {
  if (split == 1) return *from;
  float sum = 0.0f;
#pragma unroll 1
  for (int rank = 0; rank < split; ++rank) {
    const float v = LoadRemote(SharedAddress(from), rank);
    sum = rank == 0 ? v : sum + v;
  }
  return sum;
}

// v[j] = the eight sums at from + offsets[j], for all j at once: the loads are under way together.
template <int J>
__device__ __forceinline__ void Gather(int split, const float* from, const int (&offsets)[J],
                                       float4 (&v)[J][2]) {
  if (split == 1) {
#pragma unroll
    for (int j = 0; j < 2 * J; ++j) {
      v[j / 2][j % 2] = reinterpret_cast<const float4*>(from + offsets[j / 2])[j % 2];
    }
    return;
  }
#pragma unroll 1
  for (int rank = 0; rank < split; ++rank) {
    float4 part[2 * J];
#pragma unroll
    for (int j = 0; j < 2 * J; ++j) {
      part[j] = LoadRemoteFour(SharedAddress(from + offsets[j / 2] + j % 2 * 4), rank);
    }
#pragma unroll
    for (int j = 0; j < 2 * J; ++j) {
      float4& a = v[j / 2][j % 2];
      const float4 b = part[j];
      a = rank == 0 ? b : make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    }
  }
}

__device__ __forceinline__ void StoreEight(const StreamParams& p, const float4 (&v)[2],
                                           const float4 (&bias)[2], size_t at) {
  const float4 a =
      make_float4(v[0].x + bias[0].x, v[0].y + bias[0].y, v[0].z + bias[0].z, v[0].w + bias[0].w);
  const float4 b =
      make_float4(v[1].x + bias[1].x, v[1].y + bias[1].y, v[1].z + bias[1].z, v[1].w + bias[1].w);
  if (p.out_f32) {
    float4* out = reinterpret_cast<float4*>(static_cast<float*>(p.out) + at);
    out[0] = a;
    out[1] = b;
  } else {
    alignas(16) const __nv_bfloat162 h[4] = {
        __floats2bfloat162_rn(a.x, a.y), __floats2bfloat162_rn(a.z, a.w),
        __floats2bfloat162_rn(b.x, b.y), __floats2bfloat162_rn(b.z, b.w)};
    *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.out) + at) =
        *reinterpret_cast<const uint4*>(h);
  }
}

// One output at a time: rows of out that do not start on 16 bytes.
__device__ __forceinline__ void StoreRagged(const StreamParams& p, const float* from, size_t at,
                                            int col) {
#pragma unroll 1
  for (int i = 0; i < 8 && col + i < p.n; ++i) {
    float v = GatherOne(p.split, from + i);
    if (p.bias != nullptr) v += p.bias[col + i];
    if (p.out_f32) {
      static_cast<float*>(p.out)[at + i] = v;
    } else {
      static_cast<__nv_bfloat16*>(p.out)[at + i] = __float2bfloat16_rn(v);
    }
  }
}

// Rows [first_row, last_row) of the tile, multiples of 8, from the sums in shared memory (those of
// instruction b at (b − first_block) · N · kStagePitch) to out; split: the ranks' sums of them.
// Neighbouring lanes take neighbouring groups of eight rows, 8 to 32 lanes a token.
template <int N>
__device__ __forceinline__ void StoreRows(const StreamParams& p, const float* sums, int tile,
                                          int first_block, int first_row, int last_row) {
  constexpr int kBatch = N >= 32 ? 4 : 1;  // tokens a thread has under way
  const int groups = (last_row - first_row) / 8;
  const int lanes_log = groups <= 8 ? 3 : groups <= 16 ? 4 : 5;
  const int group = threadIdx.x & ((1 << lanes_log) - 1);
  const int row = first_row + group * 8;
  const int col = tile * p.rows + row;
  if (group >= groups || col >= p.n) return;
  const float* from = sums + (row / kMmaRows - first_block) * N * kStagePitch + row % kMmaRows;
  const int step = 128 >> lanes_log;
  int token = threadIdx.x >> lanes_log;
  if (p.n % 8 != 0) {
#pragma unroll 1
    for (; token < p.m; token += step) {
      StoreRagged(p, from + token * kStagePitch, static_cast<size_t>(token) * p.n + col, col);
    }
    return;
  }
  float4 bias[2] = {};
  if (p.bias != nullptr) {
    bias[0] = reinterpret_cast<const float4*>(p.bias + col)[0];
    bias[1] = reinterpret_cast<const float4*>(p.bias + col)[1];
  }
#pragma unroll 1
  for (; token < p.m; token += kBatch * step) {
    int offsets[kBatch];
    float4 v[kBatch][2];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) offsets[j] = min(token + j * step, p.m - 1) * kStagePitch;
    Gather<kBatch>(p.split, from, offsets, v);
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int at = token + j * step;
      if (at < p.m) StoreEight(p, v[j], bias, static_cast<size_t>(at) * p.n + col);
    }
  }
}

}  // namespace rootstock::kernels::cuda
