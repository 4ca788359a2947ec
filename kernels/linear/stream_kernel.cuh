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

#include "kernels/cuda/pdl.cuh"
#include "kernels/linear/hopper.cuh"
#include "kernels/linear/stream_store.cuh"

namespace rootstock::kernels::cuda {

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

// The copying thread. Its code is kept small, as all of this kernel's: instructions come from
// memory that weights stream through.
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
  int slot = 0, x_slot = 0, x_it = 0;
  uint32_t parity = 1;
#pragma unroll 1
  for (int it = 0; it < total; ++it) {
    const StreamStage s(p, walk, it);
    BarrierWait(empty + 8 * slot, parity);  // in the first round the slots are free
    BarrierExpect(full + 8 * slot, s.count * (w_bytes + kXBytes));
#pragma unroll 1
    for (int i = 0; i < s.count; ++i) {
      LoadBox(ring + slot * stage_bytes + i * w_bytes, w, (s.box + i) * kBoxK, s.tile * p.rows,
              full + 8 * slot);
    }
    if (++slot == p.stages) {
      slot = 0;
      parity ^= 1;
    }
    // No kernel writes weights: a whole ring of them is on its way before the kernel ahead ends.
    if (it < filled - 1) continue;
    if (it == filled - 1) GridDependencyWait();
#pragma unroll 1
    for (; x_it <= it; ++x_it) {
      const StreamStage of_x(p, walk, x_it);
      const uint32_t to = ring + x_slot * stage_bytes + p.stage_boxes * w_bytes;
#pragma unroll 1
      for (int i = 0; i < of_x.count; ++i) {
        LoadBox(to + i * kXBytes, x, (of_x.box + i) * kBoxK, 0, full + 8 * x_slot);
      }
      if (++x_slot == p.stages) x_slot = 0;
      if (x_it == trigger) GridLaunchDependents();
    }
  }
}

// Barrier of the multiplying warps alone.
__device__ __forceinline__ void SyncMultiplying() { asm volatile("bar.sync 1, 128;" ::: "memory"); }

// Sums of a tile to out, as many instructions' at a time as have room.
template <int N, int MB>
__device__ __forceinline__ void Finish(const StreamParams& p, const float (&sums)[MB][N / 2],
                                       float* room, int tile) {
#pragma unroll 1
  for (int first = 0; first < MB; first += p.sums_blocks) {
    SyncMultiplying();  // all are done with the ring, or with the sums before
#pragma unroll
    for (int b = 0; b < MB; ++b) {
      if (b >= first && b < first + p.sums_blocks) {
        PutSums<N>(sums[b], room + (b - first) * N * kStagePitch);
      }
    }
    int first_row = first * kMmaRows;
    int last_row = min(p.rows, (first + p.sums_blocks) * kMmaRows);
    if (p.split == 1) {
      SyncMultiplying();
    } else {
      const int groups = p.rows / 8;
      const int rank = ClusterRank();
      first_row = rank * groups / p.split * 8;
      last_row = (rank + 1) * groups / p.split * 8;
      ClusterSync();
    }
    StoreRows<N>(p, room, tile, first, first_row, last_row);
  }
  if (p.split > 1) ClusterMeet();  // a block's sums outlive the other's reads
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
    __syncwarp();
    if (p.split == 1) return;
    ClusterSync();  // as Finish
    ClusterMeet();
  } else {
    StreamMultiply<N, MB>(p, ring, full, empty, room);
  }
#endif
}

}  // namespace rootstock::kernels::cuda
