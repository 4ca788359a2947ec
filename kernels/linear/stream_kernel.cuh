// The weight-streaming matrix product: how one block works.
//
// A block computes a tile of R weight rows for all tokens. A producer warp copies boxes of 64 k
// (R rows of w, N rows of x, 128-byte swizzle) into a ring of stages; four warps multiply a stage,
// w being the left operand (64 rows an instruction, MB instructions a tile) and x the right one
// (N tokens), and give it back. The sums stay in registers until the tile's k is done, then go
// through shared memory to rows of out. With a split the blocks of a cluster take a part of k each
// and add their sums in rank order through distributed shared memory.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include "kernels/cuda/pdl.cuh"
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
  int split = 1;        // 1 or 2; 2: a block has one tile
  int stage_boxes = 0;  // boxes of w and of x a stage
  int stages = 0;       // ≤ kMaxStages
  int trigger = 0;      // the next kernel may start this many stages before the last one is loaded
  int prefetch = 0;     // stages after the ring whose weights go to the second cache at the start
  int sums_offset = 0;  // of the sums in shared memory: over the ring where it is not used any more
  int sums_blocks = 0;  // MB, or 1: the sums of how many instructions have room at once
  int barrier_offset = 0;
};

// What a block walks: its tiles, and of each its boxes [first, last).
struct StreamWalk {
  __device__ explicit StreamWalk(const StreamParams& p)
      : first_tile(blockIdx.x / p.split),
        tile_step(gridDim.x / p.split),
        first_box(blockIdx.x % p.split * p.boxes / p.split),
        last_box((blockIdx.x % p.split + 1) * p.boxes / p.split),
        tile_stages((last_box - first_box + p.stage_boxes - 1) / p.stage_boxes) {}

  int first_tile, tile_step, first_box, last_box, tile_stages;
};

// Stage `it` of the block's walk.
struct StreamStage {
  __device__ StreamStage(const StreamParams& p, const StreamWalk& walk, int it)
      : tile(walk.first_tile + it / walk.tile_stages * walk.tile_step),
        box(walk.first_box + it % walk.tile_stages * p.stage_boxes),
        count(min(p.stage_boxes, walk.last_box - box)) {}

  int tile, box, count;
};

// The copying thread.
template <int N>
__device__ void StreamLoad(const CUtensorMap* w, const CUtensorMap* x, const StreamParams& p,
                           uint32_t ring, uint32_t full, uint32_t empty) {
  const StreamWalk walk(p);
  const uint32_t w_bytes = p.rows * kBoxRowBytes;
  constexpr uint32_t kXBytes = N * kBoxRowBytes;
  const uint32_t stage_bytes = p.stage_boxes * (w_bytes + kXBytes);
  const int tiles = (p.tiles - walk.first_tile + walk.tile_step - 1) / walk.tile_step;
  const int total = tiles * walk.tile_stages;
  const int filled = min(total, p.stages);
  const int trigger = max(0, total - 1 - p.trigger);
  const auto load_w = [&](const StreamStage& s, int slot) {
    BarrierExpect(full + 8 * slot, s.count * (w_bytes + kXBytes));
    for (int i = 0; i < s.count; ++i) {
      LoadBox(ring + slot * stage_bytes + i * w_bytes, w, (s.box + i) * kBoxK, s.tile * p.rows,
              full + 8 * slot);
    }
  };
  const auto load_x = [&](const StreamStage& s, int slot) {
    const uint32_t to = ring + slot * stage_bytes + p.stage_boxes * w_bytes;
    for (int i = 0; i < s.count; ++i) {
      LoadBox(to + i * kXBytes, x, (s.box + i) * kBoxK, 0, full + 8 * slot);
    }
  };
  // No kernel writes weights: they are on their way before the kernel ahead has ended.
  for (int it = 0; it < filled; ++it) load_w(StreamStage(p, walk, it), it);
  for (int it = filled; it < min(total, filled + p.prefetch); ++it) {
    const StreamStage s(p, walk, it);
    for (int i = 0; i < s.count; ++i) PrefetchBox(w, (s.box + i) * kBoxK, s.tile * p.rows);
  }
  GridDependencyWait();
  for (int it = 0; it < filled; ++it) {
    load_x(StreamStage(p, walk, it), it);
    if (it == trigger) GridLaunchDependents();
  }
  int slot = 0;
  uint32_t parity = 0;
  for (int it = filled; it < total; ++it) {
    const StreamStage s(p, walk, it);
    BarrierWait(empty + 8 * slot, parity);
    load_w(s, slot);
    load_x(s, slot);
    if (it == trigger) GridLaunchDependents();
    if (++slot == p.stages) {
      slot = 0;
      parity ^= 1;
    }
  }
}

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

// Eight neighbouring outputs of token `token`; `col`, a multiple of 8, is the first one's place.
__device__ __forceinline__ void StoreEight(const StreamParams& p, float (&v)[8], int token,
                                           int col) {
  if (p.bias != nullptr) {
    for (int i = 0; i < 8; ++i) v[i] += col + i < p.n ? p.bias[col + i] : 0.0f;
  }
  const size_t at = static_cast<size_t>(token) * p.n + col;
  const bool whole = p.n % 8 == 0;  // also: aligned to 16 bytes
  if (p.out_f32) {
    float* out = static_cast<float*>(p.out) + at;
    if (whole) {
      reinterpret_cast<float4*>(out)[0] = make_float4(v[0], v[1], v[2], v[3]);
      reinterpret_cast<float4*>(out)[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
      for (int i = 0; i < 8 && col + i < p.n; ++i) out[i] = v[i];
    }
  } else {
    __nv_bfloat16* out = static_cast<__nv_bfloat16*>(p.out) + at;
    alignas(16) __nv_bfloat162 h[4];
    for (int i = 0; i < 4; ++i) h[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
    if (whole) {
      *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(h);
    } else {
      for (int i = 0; i < 8 && col + i < p.n; ++i) out[i] = i % 2 == 0 ? h[i / 2].x : h[i / 2].y;
    }
  }
}

// Rows [first_row, last_row) of the tile, multiples of 8, from the sums in shared memory (those of
// instruction b at (b − first_block) · N · kStagePitch) to out; split: plus those of the other
// rank.
template <int N>
__device__ void StoreRows(const StreamParams& p, const float* sums, int tile, int first_block,
                          int first_row, int last_row) {
  const int groups = (last_row - first_row) / 8;
  for (int i = threadIdx.x; i < p.m * groups; i += 128) {
    const int token = i / groups;
    const int row = first_row + i % groups * 8;
    const int col = tile * p.rows + row;
    if (col >= p.n) continue;
    const float* from =
        sums + ((row / kMmaRows - first_block) * N + token) * kStagePitch + row % kMmaRows;
    alignas(16) float v[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float4 a = reinterpret_cast<const float4*>(from)[half];
      for (int rank = 0; rank < p.split && p.split > 1; ++rank) {
        const float4 b = LoadRemote(SharedAddress(from + 4 * half), rank);
        a = rank == 0 ? b : make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
      }
      reinterpret_cast<float4*>(v)[half] = a;
    }
    StoreEight(p, v, token, col);
  }
}

// Barrier of the multiplying warps alone.
__device__ __forceinline__ void SyncMultiplying() { asm volatile("bar.sync 1, 128;" ::: "memory"); }

// Sums of a tile to out, as many instructions' at a time as have room. split: only to shared
// memory.
template <int N, int MB>
__device__ __forceinline__ void Finish(const StreamParams& p, const float (&sums)[MB][N / 2],
                                       float* room, int tile) {
  if (p.sums_blocks == MB) {
    SyncMultiplying();  // all are done with the ring
#pragma unroll
    for (int b = 0; b < MB; ++b) PutSums<N>(sums[b], room + b * N * kStagePitch);
    if (p.split > 1) return;
    SyncMultiplying();
    StoreRows<N>(p, room, tile, 0, 0, p.rows);
    return;
  }
#pragma unroll
  for (int b = 0; b < MB; ++b) {
    SyncMultiplying();  // the last block's sums are read
    PutSums<N>(sums[b], room);
    SyncMultiplying();
    StoreRows<N>(p, room, tile, b, b * kMmaRows, min(p.rows, (b + 1) * kMmaRows));
  }
}

// The multiplying warps.
template <int N, int MB>
__device__ void StreamMultiply(const StreamParams& p, uint32_t ring, uint32_t full, uint32_t empty,
                               float* room) {
  const StreamWalk walk(p);
  const uint32_t w_step = p.rows * kBoxRowBytes;
  constexpr uint32_t kXStep = N * kBoxRowBytes;
  const uint32_t stage_bytes = p.stage_boxes * (w_step + kXStep);
  int slot = 0;
  uint32_t parity = 0;
  for (int tile = walk.first_tile; tile < p.tiles; tile += walk.tile_step) {
    float sums[MB][N / 2] = {};
    for (int it = 0; it < walk.tile_stages; ++it) {
      const int count = min(p.stage_boxes, walk.last_box - walk.first_box - it * p.stage_boxes);
      BarrierWait(full + 8 * slot, parity);
      uint64_t w = MatrixDescriptor(ring + slot * stage_bytes);
      uint64_t x = MatrixDescriptor(ring + slot * stage_bytes + p.stage_boxes * w_step);
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        MmaFence();
#pragma unroll
        for (int k = 0; k < kBoxK / 16; ++k) {
#pragma unroll
          for (int b = 0; b < MB; ++b) {
            Mma<N>::Run(sums[b], w + (b * kMmaRows * kBoxRowBytes + k * 32) / 16, x + k * 2);
          }
        }
        MmaCommit();
        w += w_step / 16;
        x += kXStep / 16;
      }
      MmaWait();
      if (threadIdx.x % 32 == 0) BarrierArrive(empty + 8 * slot);
      if (++slot == p.stages) {
        slot = 0;
        parity ^= 1;
      }
    }
    Finish<N, MB>(p, sums, room, tile);
  }
}

// Grid: split · tiles blocks, or fewer that walk the tiles; block: kStreamThreads; split 2:
// clusters of 2. Only on sm_90a.
template <int N, int MB>
__global__ void __launch_bounds__(kStreamThreads, 1)
    StreamKernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                 const __grid_constant__ StreamParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char shared[];
  const uint32_t ring = SharedAddress(shared);
  const uint32_t full = ring + p.barrier_offset;
  const uint32_t empty = full + 8 * kMaxStages;
  float* room = reinterpret_cast<float*>(shared + p.sums_offset);
  // Uniform in the eyes of the compiler, which else serializes the products.
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const bool loads = threadIdx.x == kStreamThreads - 32;
  if (loads) {
    PrefetchMap(&w);
    PrefetchMap(&x);
    for (int i = 0; i < p.stages; ++i) {
      BarrierInit(full + 8 * i, 1);
      BarrierInit(empty + 8 * i, 4);
    }
    BarrierInitFence();
  }
  __syncthreads();
  if (warp == 4) {
    if (loads) StreamLoad<N>(&w, &x, p, ring, full, empty);
  } else {
    StreamMultiply<N, MB>(p, ring, full, empty, room);
  }
  if (p.split == 1) return;
  __syncwarp();
  ClusterSync();
  if (warp != 4) {
    const int groups = p.rows / 8;
    const int rank = ClusterRank();
    StoreRows<N>(p, room, blockIdx.x / p.split, 0, rank * groups / p.split * 8,
                 (rank + 1) * groups / p.split * 8);
  }
  __syncwarp();
  ClusterSync();  // a block's sums outlive the other's reads
#endif
}

}  // namespace rootstock::kernels::cuda
