// The weight-streaming matrix product: its parameters, and the way of a block's sums to its
// outputs.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/vec.cuh"

namespace rootstock::kernels::cuda {

constexpr int kStreamThreads = 192;        // four multiplying warps, one that copies w, one for x
constexpr int kTwoGroupThreads = 320;      // eight, of which each four take half of a tile's rows
constexpr int kShrinkStreamThreads = 384;  // and, from thread 256 on, four that shrink
constexpr int kBoxK = 64;                  // of a box: 128 bytes, the swizzle's span
constexpr int kBoxRowBytes = 128;
constexpr int kMmaRows = 64;
constexpr int kMaxStages = 16;
constexpr int kMaxSplit = 4;
constexpr int kStagePitch = kMmaRows + 4;  // floats; free of bank conflicts

// kAny: all. kWhole: of split 1 and a tile a block; its registers leave room for another kernel's
// beside a wide tile. kGated: likewise, and silu(gate) · up is stored. kGatedLora:
// of what LoRA makes of gate and up. kGatedRows: the same where adapters have about a token each.
enum class StreamForm : uint8_t { kAny, kWhole, kGated, kGatedLora, kGatedRows };

struct StreamParams {
  const float* bias = nullptr;  // [n]; null: none
  void* out = nullptr;          // [m, n], f32 or bf16
  bool out_f32 = false;
  int m = 0;
  int n = 0;
  int boxes = 0;        // of the whole k
  int rows = 0;         // R, a multiple of 8
  int up_row = 0;       // not 0: half of R are rows from up_row on (StoreGated); R a multiple of 16
  int tiles = 0;        // of R rows
  int split = 1;        // blocks of a cluster that share k: 1, 2 or 4; above 1 a block has one tile
  int split_log = 0;    // its logarithm: divisions are long code
  int stage_boxes = 0;  // boxes of w and of x a stage
  int w_stages = 0;     // of the ring of w, ≤ kMaxStages
  int x_stages = 0;     // of the ring of x behind it, ≤ kMaxStages
  int pace = 0;         // stages of w under way at most
  bool pace_always = false;  // not only while the ring is filled for the first time
  int trigger = 0;           // the next kernel may start this many stages of x before the last one
  int parts_offset = 0;      // of the other ranks' sums (AddRanks) in shared memory
  int sums_offset = 0;  // of the sums in shared memory: over the ring where it is not used any more
  int sums_blocks = 0;  // MB, or 1: the sums of how many instructions have room at once
  int barrier_offset = 0;
  int shrink_offset = 0;  // of the shrink's sums in shared memory
  int delta_offset = 0;   // of what LoRA adds to a gated tile (DeltaPitch)
};

// Sums of an instruction to shared memory: [N][kStagePitch] floats, row by row. `to`: of the first
// group of warps.
template <int N, int kGroups = 1>
__device__ __forceinline__ void PutSums(const float (&sums)[N / 2], float* to) {
  const int lane = threadIdx.x % 32;
  if constexpr (kGroups > 1) to += threadIdx.x / 128 * (4 / kGroups * N * kStagePitch);
  const int row = (kGroups == 1 ? threadIdx.x / 32 : threadIdx.x / 32 % 4) * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
    to[token * kStagePitch + row + i / 2 % 2 * 8] = sums[i];
  }
}

// First of the groups of 8 rows whose sums block `rank` of the cluster adds and stores; the ends
// are those of the next rank.
__device__ __forceinline__ int FirstGroup(const StreamParams& p, int rank) {
  return rank * (p.rows / 8) >> p.split_log;
}

// Blocks of a cluster send each other the sums of the rows that the other one stores, straight from
// registers: who holds a sum in one block holds it in all. A group takes kSends · 32 sends.
template <int N>
struct RankParts {
  static constexpr int kFloats = N == 8 ? 2 : 4;  // of a send
  static constexpr int kSends = N / 4 / kFloats;  // of a lane for a group of 8 rows
  const StreamParams& p;
  uint32_t parts, full;  // here, and at the same addresses of each block
  int rank, most, own, own_end;

  __device__ RankParts(const StreamParams& params, uint32_t at, uint32_t barrier)
      : p(params),
        parts(at),
        full(barrier),
        rank(params.split == 1 ? 0 : ClusterRank()),
        most((params.rows / 8 + params.split - 1) >> params.split_log),
        own(FirstGroup(params, rank)),
        own_end(FirstGroup(params, rank + 1)) {}

  // What the other ranks send here.
  __device__ uint32_t bytes() const {
    return (p.split - 1) * (own_end - own) * 8 * N * sizeof(float);
  }
  // The warp's group in half i % 2 of instruction i / 2.
  __device__ int GroupOf(int i) const { return i / 2 * 8 + threadIdx.x / 32 * 2 + i % 2; }
  __device__ int Owner(int group) const {
    int owner = 0;
#pragma unroll
    for (int r = 1; r < kMaxSplit; ++r) owner += r < p.split && group >= FirstGroup(p, r) ? 1 : 0;
    return owner;
  }
  // The owner's group `index` from another rank; slot: which of the others, in order.
  __device__ uint32_t At(int slot, int index) const {
    return parts +
           ((slot * most + index) * kSends * 32 + threadIdx.x % 32) * kFloats * sizeof(float);
  }
};

// Where float f of a lane's in a group lies in the sums of an instruction; h: half of its 16 rows.
__device__ constexpr int SumAt(int f, int h) { return f / 2 * 4 + 2 * h + f % 2; }

template <int N, int MB>
__device__ __forceinline__ void SendSums(const RankParts<N>& r, const float (&sums)[MB][N / 2]) {
  constexpr int kFloats = RankParts<N>::kFloats;
#pragma unroll
  for (int i = 0; i < 2 * MB; ++i) {
    const int group = r.GroupOf(i);
    const int owner = r.Owner(group);
    if (group * 8 >= r.p.rows || owner == r.rank) continue;
    const int slot = r.rank - (r.rank > owner ? 1 : 0);
    const uint32_t to = RemoteAddress(r.At(slot, group - FirstGroup(r.p, owner)), owner);
    const uint32_t full = RemoteAddress(r.full, owner);
#pragma unroll
    for (int q = 0; q < RankParts<N>::kSends; ++q) {
      float v[kFloats];
#pragma unroll
      for (int f = 0; f < kFloats; ++f) v[f] = sums[i / 2][SumAt(q * kFloats + f, i % 2)];
      SendRemote(to + q * 32 * sizeof(v), full, v);
    }
  }
}

// In the rows that this block stores sums become those of all ranks: own first, then in rank order.
template <int N, int MB>
__device__ __forceinline__ void TakeSums(const RankParts<N>& r, float (&sums)[MB][N / 2]) {
  constexpr int kFloats = RankParts<N>::kFloats;
  BarrierWait(r.full, 0);
#pragma unroll 1
  for (int slot = 0; slot < r.p.split - 1; ++slot) {
#pragma unroll
    for (int i = 0; i < 2 * MB; ++i) {
      const int group = r.GroupOf(i);
      if (group < r.own || group >= r.own_end) continue;
      const uint32_t from = r.At(slot, group - r.own);
#pragma unroll
      for (int q = 0; q < RankParts<N>::kSends; ++q) {
        float v[kFloats];
        LoadShared(from + q * 32 * sizeof(v), v);
#pragma unroll
        for (int f = 0; f < kFloats; ++f) sums[i / 2][SumAt(q * kFloats + f, i % 2)] += v[f];
      }
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
    float v = from[i];
    if (p.bias != nullptr) v += p.bias[col + i];
    if (p.out_f32) {
      static_cast<float*>(p.out)[at + i] = v;
    } else {
      static_cast<__nv_bfloat16*>(p.out)[at + i] = __float2bfloat16_rn(v);
    }
  }
}

// Rows [first_row, last_row) of the tile, multiples of 8, from the sums in shared memory (those of
// instruction b at (b − first_block) · N · kStagePitch) to out. Neighbouring lanes take
// neighbouring groups of eight rows, 8 to 32 lanes a token.
template <int N, int kGroups = 1>
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
  const int step = kGroups * 128 >> lanes_log;
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
#pragma unroll
    for (int j = 0; j < 2 * kBatch; ++j) {
      v[j / 2][j % 2] = reinterpret_cast<const float4*>(from + offsets[j / 2])[j % 2];
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int at = token + j * step;
      if (at < p.m) StoreEight(p, v[j], bias, static_cast<size_t>(at) * p.n + col);
    }
  }
}

// As the kernel of silu · mul has it, of sums that went through bf16: the same bits.
__device__ __forceinline__ uint32_t GatePair(float2 gate, float2 up, float2 gate_delta,
                                             float2 up_delta) {
  gate = UnpackBf16(PackBf16(gate.x, gate.y));
  up = UnpackBf16(PackBf16(up.x, up.y));
  return PackBf16(SiluMulOne(gate.x + gate_delta.x, up.x + up_delta.x),
                  SiluMulOne(gate.y + gate_delta.y, up.y + up_delta.y));
}

// Floats from a token's deltas at the gate to those at up, and half of those to the next token.
__host__ __device__ constexpr int DeltaPitch(int half) { return half + 4; }

// The first half of a tile's rows are of the gate, the second the same rows of up (at p.up_row):
// out [m, n / 2] = silu(gate) · up in bf16. All sums are in shared memory; n a multiple of 16.
// delta: what LoRA adds, [m][2][DeltaPitch], if kDelta.
template <int N, bool kDelta, int kGroups = 1>
__device__ __forceinline__ void StoreGated(const StreamParams& p, const float* sums, int tile,
                                           const float* delta) {
  constexpr int kBatch = N >= 32 ? 2 : 1;  // tokens a thread has under way
  const int half = p.rows / 2;
  const int lanes_log = half <= 64 ? 3 : 4;
  const int row = 8 * (threadIdx.x & ((1 << lanes_log) - 1));
  const int col = tile * half + row;
  if (row >= half || col >= p.up_row) return;
  const auto at = [&](int r) { return r / kMmaRows * N * kStagePitch + r % kMmaRows; };
  const float* gate = sums + at(row);
  const float* up = sums + at(row + half);
  const int step = kGroups * 128 >> lanes_log;
  auto* out = static_cast<__nv_bfloat16*>(p.out) + col;
#pragma unroll 1
  for (int token = threadIdx.x >> lanes_log; token < p.m; token += kBatch * step) {
    float4 g[kBatch][2], u[kBatch][2];
#pragma unroll
    for (int j = 0; j < 2 * kBatch; ++j) {
      const int offset = min(token + j / 2 * step, p.m - 1) * kStagePitch;
      g[j / 2][j % 2] = reinterpret_cast<const float4*>(gate + offset)[j % 2];
      u[j / 2][j % 2] = reinterpret_cast<const float4*>(up + offset)[j % 2];
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (token + j * step >= p.m) continue;
      float4 dg[2] = {}, du[2] = {};
      if (kDelta) {
        const float* of = delta + (token + j * step) * 2 * DeltaPitch(half) + row;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          dg[i] = reinterpret_cast<const float4*>(of)[i];
          du[i] = reinterpret_cast<const float4*>(of + DeltaPitch(half))[i];
        }
      }
      uint4 x;
      x.x = GatePair({g[j][0].x, g[j][0].y}, {u[j][0].x, u[j][0].y}, {dg[0].x, dg[0].y},
                     {du[0].x, du[0].y});
      x.y = GatePair({g[j][0].z, g[j][0].w}, {u[j][0].z, u[j][0].w}, {dg[0].z, dg[0].w},
                     {du[0].z, du[0].w});
      x.z = GatePair({g[j][1].x, g[j][1].y}, {u[j][1].x, u[j][1].y}, {dg[1].x, dg[1].y},
                     {du[1].x, du[1].y});
      x.w = GatePair({g[j][1].z, g[j][1].w}, {u[j][1].z, u[j][1].w}, {dg[1].z, dg[1].w},
                     {du[1].z, du[1].w});
      *reinterpret_cast<uint4*>(out + static_cast<size_t>(token + j * step) * p.up_row) = x;
    }
  }
}

}  // namespace rootstock::kernels::cuda
