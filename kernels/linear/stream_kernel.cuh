// The weight-streaming matrix product: how one block works.
//
// A block computes a tile of R weight rows for all tokens. One warp copies boxes of 64 k of w (R
// rows, 128-byte swizzle) into a ring of stages, another those of x (N rows) into a ring of its
// own: w comes from memory and needs a deep one, x from the second cache. Four warps multiply a
// stage, w being the left operand (64 rows an instruction, MB instructions a tile) and x the right
// one (N tokens), and give both back. The sums stay in registers until the tile's k is done, then
// go through shared memory to rows of out. With a split the blocks of a cluster take a part of k
// each, send each other their sums of the rows that the other stores, and add them in a fixed
// order.
#pragma once

#include <cuda.h>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/linear/stream_store.cuh"

namespace rootstock::kernels::cuda {

// What a block walks: its tiles, and of each its boxes [first, last).
struct StreamWalk {
  __device__ explicit StreamWalk(const StreamParams& p)
      : first_tile(blockIdx.x >> p.split_log),
        tile_step(gridDim.x >> p.split_log),
        first_box((blockIdx.x & (p.split - 1)) * p.boxes >> p.split_log),
        last_box(((blockIdx.x & (p.split - 1)) + 1) * p.boxes >> p.split_log) {}

  int first_tile, tile_step, first_box, last_box;
};

// Place in a ring: its slot, and the parity of the round.
struct RingPlace {
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Advance(int stages) {
    if (++slot != stages) return;
    slot = 0;
    parity ^= 1;
  }
};

// Addresses of the rings and their barriers in shared memory.
struct StreamRings {
  __device__ StreamRings(const StreamParams& p, uint32_t shared)
      : w(shared),
        w_box(p.rows * kBoxRowBytes),
        x(shared + p.w_stages * p.stage_boxes * w_box),
        w_full(shared + p.barrier_offset),
        w_empty(w_full + 8 * kMaxStages),
        x_full(w_empty + 8 * kMaxStages),
        x_empty(x_full + 8 * kMaxStages),
        parts(shared + p.parts_offset),
        parts_full(x_empty + 8 * kMaxStages) {}

  uint32_t w, w_box, x, w_full, w_empty, x_full, x_empty, parts, parts_full;
};

// The thread that copies w. Its code is kept small, as all of this kernel's: instructions come from
// memory that weights stream through. No kernel writes weights: a whole ring of them is on its way
// before the kernel ahead ends.
__device__ __forceinline__ void LoadWeights(const CUtensorMap* w, const StreamParams& p,
                                            const StreamRings& rings) {
  const StreamWalk walk(p);
  const uint32_t stage_bytes = p.stage_boxes * rings.w_box;
  RingPlace at{0, 1};  // in the first round the slots are free
  RingPlace arrived;   // `pace` stages back
  int until_paced = p.pace;
#pragma unroll 1
  for (int tile = walk.first_tile; tile < p.tiles; tile += walk.tile_step) {
#pragma unroll 1
    for (int box = walk.first_box; box < walk.last_box; box += p.stage_boxes) {
      const int count = min(p.stage_boxes, walk.last_box - box);
      const uint32_t full = rings.w_full + 8 * at.slot;
      if (--until_paced < 0) {
        BarrierWait(rings.w_full + 8 * arrived.slot, arrived.parity);
        arrived.Advance(p.w_stages);
      }
      BarrierWait(rings.w_empty + 8 * at.slot, at.parity);
      BarrierExpect(full, count * rings.w_box);
      uint32_t to = rings.w + at.slot * stage_bytes;
#pragma unroll 1
      for (int i = 0; i < count; ++i, to += rings.w_box) {
        if (p.up_row == 0) {
          LoadBox(to, w, (box + i) * kBoxK, tile * p.rows, full);
        } else {
          const int row = tile * (p.rows / 2);
          LoadBox(to, w, (box + i) * kBoxK, row, full);
          LoadBox(to + rings.w_box / 2, w, (box + i) * kBoxK, p.up_row + row, full);
        }
      }
      at.Advance(p.w_stages);
      if (at.slot == 0 && !p.pace_always) until_paced = 1 << 30;
    }
  }
}

// The thread that copies x, once the kernel ahead has ended.
template <int N>
__device__ __forceinline__ void LoadTokens(const CUtensorMap* x, const StreamParams& p,
                                           const StreamRings& rings) {
  const StreamWalk walk(p);
  constexpr uint32_t kBox = N * kBoxRowBytes;
  const uint32_t stage_bytes = p.stage_boxes * kBox;
  const int tiles = (p.tiles - walk.first_tile + walk.tile_step - 1) / walk.tile_step;
  const int tile_stages = (walk.last_box - walk.first_box + p.stage_boxes - 1) / p.stage_boxes;
  int until_trigger = max(1, tiles * tile_stages - p.trigger);
  RingPlace at{0, 1};
  GridDependencyWait();
#pragma unroll 1
  for (int tile = walk.first_tile; tile < p.tiles; tile += walk.tile_step) {
#pragma unroll 1
    for (int box = walk.first_box; box < walk.last_box; box += p.stage_boxes) {
      const int count = min(p.stage_boxes, walk.last_box - box);
      const uint32_t full = rings.x_full + 8 * at.slot;
      BarrierWait(rings.x_empty + 8 * at.slot, at.parity);
      BarrierExpect(full, count * kBox);
      uint32_t to = rings.x + at.slot * stage_bytes;
#pragma unroll 1
      for (int i = 0; i < count; ++i, to += kBox) LoadBox(to, x, (box + i) * kBoxK, 0, full);
      at.Advance(p.x_stages);
      if (--until_trigger == 0) GridLaunchDependents();
    }
  }
}

// The ring's barriers are there: the copying warps say so, the multiplying ones wait for it. Those
// are kGroups times four.
template <int kGroups>
constexpr int kStartThreads = kGroups == 1 ? kStreamThreads : kTwoGroupThreads;
template <int kGroups = 1>
__device__ __forceinline__ void ArriveStart() {
  asm volatile("bar.arrive 2, %0;" ::"n"(kStartThreads<kGroups>) : "memory");
}
template <int kGroups = 1>
__device__ __forceinline__ void SyncStart() {
  asm volatile("bar.sync 2, %0;" ::"n"(kStartThreads<kGroups>) : "memory");
}

template <int kGroups>
__device__ __forceinline__ void InitRing(uint32_t full, uint32_t empty, int stages) {
#pragma unroll 1
  for (int i = 0; i < stages; ++i) {
    BarrierInit(full + 8 * i, 1);
    BarrierInit(empty + 8 * i, 4 * kGroups);  // of each multiplying warp
  }
}

// Barrier of the multiplying warps alone.
template <int kGroups = 1>
__device__ __forceinline__ void SyncMultiplying() {
  asm volatile("bar.sync 1, %0;" ::"n"(kGroups * 128) : "memory");
}

// Between the warps that expand, which is four, or eight for kGatedRows, and those that multiply.
template <StreamForm kForm>
constexpr int kDeltaThreads = kForm == StreamForm::kGatedRows ? 384 : 256;  // both
template <StreamForm kForm>
__device__ __forceinline__ void GiveDeltas() {
  asm volatile("bar.arrive 4, %0;" ::"n"(kDeltaThreads<kForm>) : "memory");
}
template <StreamForm kForm>
__device__ __forceinline__ void TakeDeltas() {
  asm volatile("bar.sync 4, %0;" ::"n"(kDeltaThreads<kForm>) : "memory");
}

// Sums of rows [own_row, own_end) of a tile to out, as many instructions' at a time as have room.
template <int N, int MB>
__device__ __forceinline__ void Finish(const StreamParams& p, const float (&sums)[MB][N / 2],
                                       float* room, int tile, int own_row, int own_end) {
#pragma unroll 1
  for (int first = 0; first < MB; first += p.sums_blocks) {
    SyncMultiplying();  // all are done with the ring, or with the sums before
#pragma unroll
    for (int b = 0; b < MB; ++b) {
      if (b >= first && b < first + p.sums_blocks) {
        PutSums<N>(sums[b], room + (b - first) * N * kStagePitch);
      }
    }
    SyncMultiplying();
    StoreRows<N>(p, room, tile, first, max(own_row, first * kMmaRows),
                 min(own_end, (first + p.sums_blocks) * kMmaRows));
  }
}

// A warp gives back a stage of both rings; 0: none.
__device__ __forceinline__ void Release(uint32_t w_empty, uint32_t x_empty) {
  if (threadIdx.x % 32 != 0 || w_empty == 0) return;
  BarrierArrive(w_empty);
  BarrierArrive(x_empty);
}

// The multiplying warps. Where they are two groups, a tile has four instructions and each group,
// for which rings.w is that much on, takes MB of them.
template <int N, int MB, StreamForm kForm, int kGroups = 1>
__device__ void StreamMultiply(const StreamParams& p, const StreamRings& rings, float* room) {
  static_assert(kGroups == 1 || (MB * kGroups == 4 && kForm != StreamForm::kAny));
  const StreamWalk walk(p);
  const RankParts<N> ranks(p, rings.parts, rings.parts_full);
  constexpr uint32_t kXBox = N * kBoxRowBytes;
  RingPlace w_at, x_at;
  for (int tile = walk.first_tile; tile < p.tiles; tile += walk.tile_step) {
    float sums[MB][N / 2] = {};
    uint32_t w_done = 0, x_done = 0;  // barriers of the stage before
    for (int box = walk.first_box; box < walk.last_box; box += p.stage_boxes) {
      const int count = min(p.stage_boxes, walk.last_box - box);
      BarrierWait(rings.w_full + 8 * w_at.slot, w_at.parity);
      BarrierWait(rings.x_full + 8 * x_at.slot, x_at.parity);
      uint64_t w = MatrixDescriptor(rings.w + w_at.slot * p.stage_boxes * rings.w_box);
      uint64_t x = MatrixDescriptor(rings.x + x_at.slot * p.stage_boxes * kXBox);
      MmaFence();
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
#pragma unroll
        for (int k = 0; k < kBoxK / 16; ++k) {
#pragma unroll
          for (int b = 0; b < MB; ++b) {
            Mma<N>::Run(sums[b], w + (b * kMmaRows * kBoxRowBytes + k * 32) / 16, x + k * 2);
          }
        }
        w += rings.w_box / 16;
        x += kXBox / 16;
      }
      MmaCommit();
      MmaWait<1>();
      Release(w_done, x_done);
      w_done = rings.w_empty + 8 * w_at.slot;
      x_done = rings.x_empty + 8 * x_at.slot;
      w_at.Advance(p.w_stages);
      x_at.Advance(p.x_stages);
    }
    MmaWait<0>();
    Release(w_done, x_done);
    if (kForm == StreamForm::kAny && p.split > 1) {
      ClusterWait();  // the others' barriers are there
      SendSums<N, MB>(ranks, sums);
      TakeSums<N, MB>(ranks, sums);
    }
    if constexpr (kForm == StreamForm::kAny) {
      Finish<N, MB>(p, sums, room, tile, ranks.own * 8, ranks.own_end * 8);
    } else {
      SyncMultiplying<kGroups>();  // all are done with the ring
#pragma unroll
      for (int b = 0; b < MB; ++b) PutSums<N, kGroups>(sums[b], room + b * N * kStagePitch);
      SyncMultiplying<kGroups>();
      if constexpr (kForm == StreamForm::kGated) {
        StoreGated<N, false, kGroups>(p, room, tile, nullptr);
      } else if constexpr (kForm == StreamForm::kGatedLora || kForm == StreamForm::kGatedRows) {
        TakeDeltas<kForm>();
        StoreGated<N, true>(
            p, room, tile,
            room + (p.delta_offset - p.sums_offset) / static_cast<int>(sizeof(float)));
      } else {
        StoreRows<N, kGroups>(p, room, tile, 0, 0, p.rows);
      }
    }
  }
}

// The copying warps, 4 for w and 5 for x. They need no barrier but their own.
template <int N, int kGroups = 1>
__device__ __forceinline__ void StreamCopy(const CUtensorMap* w, const CUtensorMap* x,
                                           const StreamParams& p, const StreamRings& rings,
                                           int warp) {
  if (threadIdx.x % 32 == 0) {
    PrefetchMap(warp == 4 ? w : x);
    if (warp == 4) {
      InitRing<kGroups>(rings.w_full, rings.w_empty, p.w_stages);
    } else {
      InitRing<kGroups>(rings.x_full, rings.x_empty, p.x_stages);
      BarrierInit(rings.parts_full, 1);
      BarrierExpect(rings.parts_full, RankParts<N>(p, 0, 0).bytes());
    }
    BarrierInitFence();
  }
  __syncwarp();
  ArriveStart<kGroups>();
  if (p.split > 1) ClusterArrive();
  if (threadIdx.x % 32 == 0) {
    if (warp == 4) {
      LoadWeights(w, p, rings);
    } else {
      LoadTokens<N>(x, p, rings);
    }
  }
}

// Grid: split · tiles blocks, or fewer that walk the tiles; block: kStreamThreads; clusters of
// `split`. Only on sm_90a.
template <int N, int MB, StreamForm kForm>
__global__ void __launch_bounds__(kStreamThreads, 1)
    StreamKernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                 const __grid_constant__ StreamParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char shared[];
  // Uniform in the eyes of the compiler, which else serializes the products.
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const StreamRings rings(p, SharedAddress(shared));
  if (warp < 4) {
    SyncStart();
    if (p.split > 1) ClusterArrive();
    StreamMultiply<N, MB, kForm>(p, rings, reinterpret_cast<float*>(shared + p.sums_offset));
  } else {
    StreamCopy<N>(&w, &x, p, rings, warp);
  }
#endif
}

// The same for wide tiles of more than 64 tokens, whose sums four warps' registers do not hold. A
// tile a block, no clusters; block: kTwoGroupThreads.
template <int N, StreamForm kForm>
__global__ void __launch_bounds__(kTwoGroupThreads, 1)
    StreamTwoGroupKernel(const __grid_constant__ CUtensorMap w,
                         const __grid_constant__ CUtensorMap x,
                         const __grid_constant__ StreamParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char shared[];
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  StreamRings rings(p, SharedAddress(shared));
  if (warp < 8) {
    rings.w += warp / 4 * (2 * kMmaRows * kBoxRowBytes);
    SyncStart<2>();
    StreamMultiply<N, 2, kForm, 2>(p, rings, reinterpret_cast<float*>(shared + p.sums_offset));
  } else {
    StreamCopy<N, 2>(&w, &x, p, rings, warp - 4);
  }
#endif
}

}  // namespace rootstock::kernels::cuda
