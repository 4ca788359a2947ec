// Shrink of long steps on sm_90a: a cluster takes 128 members of a group, its blocks share out the
// inputs, and each multiplies by warpgroup products, so that what the members share of A comes
// from the second cache once for 128 of them and x once for up to 192 ranks of all targets. Rows of
// both come by asynchronous copies in the layout with 128-byte swizzle. The blocks' sums are added
// in the order of the inputs.
#pragma once

#include <cooperative_groups.h>

#include <type_traits>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/lora_shrink_tiles.cuh"

namespace rootstock::kernels::cuda {

constexpr int kLongMembers = 128;  // of a tile: 64 a warpgroup
constexpr int kLongThreads = 2 * kLongMembers;
constexpr int kLongStep = 64;              // inputs of a stage: 128 bytes a row
constexpr int kLongRingBytes = 108 << 10;  // two blocks an SM
constexpr int kLongMaxRanks = 192;         // of a pass
constexpr int kLongRowsAtOnce = kLongThreads / 8;
constexpr int kLongSharedBytes = kLongRingBytes + (kLongMembers + kLongMaxRanks) * 4;
constexpr uint32_t kNoRow = ~0u;

// Where the rows of a pass begin.
struct LongRows {
  uint32_t x[kLongMembers];   // tokens; kNoRow: no such member
  uint32_t a[kLongMaxRanks];  // row offsets; kNoRow: no such rank

  // All threads of the block must call it.
  __device__ __forceinline__ void Set(const LoraStep& step, const LoraTargets& targets,
                                      const LongTile& tile, const RankBlocks& ranks, int first) {
    if (threadIdx.x < kLongMembers) {
      const bool any = static_cast<int>(threadIdx.x) < tile.members;
      x[threadIdx.x] = any ? step.tokens[tile.member + threadIdx.x] : kNoRow;
    }
    if (threadIdx.x < kLongMaxRanks) {
      const RankBlock block = ranks.At(first + threadIdx.x / 8);
      const int rank = block.first + threadIdx.x % 8;
      const bool any = rank < block.lora_rank;
      a[threadIdx.x] = any ? __ldg(SiteOf(tile.sites, targets, block.target).a + rank) : kNoRow;
    }
    __syncthreads();
  }
};

// Blocks that share a tile's inputs: as many as leave no SM without one.
inline int LongCluster(int max_members) {
  const int tiles = (max_members + kLongMembers - 1) / kLongMembers;
  return tiles <= 16 ? 8 : tiles <= 32 ? 4 : tiles <= 64 ? 2 : 1;
}

// Inputs of a block.
inline int LongSlice(int in, int cluster) {
  return (in + cluster * kLongStep - 1) / (cluster * kLongStep) * kLongStep;
}

// kRanks: of a pass. A stage holds [members][64 inputs] of x, then [ranks][64 inputs] of A.
template <int kRanks>
struct LongPass {
  static constexpr int kOf = kRanks < 64 ? kRanks : 64;  // ranks of a product
  static constexpr int kParts = kRanks / kOf;
  static constexpr int kStageBytes = (kLongMembers + kRanks) * 128;
  static constexpr int kStages = kLongRingBytes / kStageBytes;
  static constexpr int kSumStride = kRanks + 8;  // floats; the pad spreads the banks
  static_assert(kStages >= 2 && kLongMembers * kSumStride * 4 <= kLongRingBytes);

  const __nv_bfloat16* in;  // rows of `width`
  size_t width;
  const std::byte* slab;
  const LongRows& rows;
  uint32_t ring, to;  // to: this thread's place in a stage

  __device__ __forceinline__ LongPass(const __nv_bfloat16* from, int inputs, const std::byte* pages,
                                      const LongRows& of, uint32_t shared)
      : in(from), width(inputs), slab(pages), rows(of), ring(shared) {
    const int row = threadIdx.x / 8;
    to = row * 128 + ((threadIdx.x ^ row) % 8) * 16;
  }

  // This thread's 16 bytes of every 32nd row, of the inputs from `k` on; zeros beyond `end` and
  // where there is no row, so that no branch keeps one copy waiting for another.
  __device__ __forceinline__ void Copy(int stage, int k, int end) const {
    const int at = k + 8 * static_cast<int>(threadIdx.x % 8);
    const bool inside = at < end;
    CopyX(stage, inside ? at : 0, inside);
    CopyA(stage, inside ? at : 0, inside);
  }
  __device__ __forceinline__ void CopyX(int stage, int at, bool inside) const {
    const uint32_t base = ring + stage * kStageBytes + to;
    uint32_t from[kLongMembers / kLongRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kLongMembers / kLongRowsAtOnce; ++i) {
      from[i] = rows.x[threadIdx.x / 8 + i * kLongRowsAtOnce];
    }
#pragma unroll
    for (int i = 0; i < kLongMembers / kLongRowsAtOnce; ++i) {
      const bool live = inside && from[i] != kNoRow;
      CopyAsync16(base + i * kLongRowsAtOnce * 128, in + (live ? from[i] : 0) * width + at, live);
    }
  }
  __device__ __forceinline__ void CopyA(int stage, int at, bool inside) const {
    constexpr int kCopies = (kRanks + kLongRowsAtOnce - 1) / kLongRowsAtOnce;
    const uint32_t base = ring + stage * kStageBytes + kLongMembers * 128 + to;
    uint32_t from[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) from[i] = rows.a[threadIdx.x / 8 + i * kLongRowsAtOnce];
    if (kRanks % kLongRowsAtOnce != 0 && threadIdx.x / 8 >= kRanks) return;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const bool live = inside && from[i] != kNoRow;
      const std::byte* row = slab + (live ? from[i] : 0) * kRowUnit + at * 2;
      CopyAsync16(base + i * kLongRowsAtOnce * 128, row, live);
    }
  }

  // sums += the products of a stage. What was not copied there reaches no sum that is kept: a
  // member's row meets a rank's row alone.
  __device__ __forceinline__ void Multiply(int stage, float (&sums)[kParts][kOf / 2]) const {
    const uint32_t tokens = ring + stage * kStageBytes + threadIdx.x / 128 * (64 * 128);
    const uint32_t ranks = ring + stage * kStageBytes + kLongMembers * 128;
    MmaFence();
#pragma unroll
    for (int k = 0; k < kLongStep / 16; ++k)
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        Mma<kOf>::Run(sums[p], MatrixDescriptor(tokens + k * 32),
                      MatrixDescriptor(ranks + p * kOf * 128 + k * 32));
      }
    MmaCommit();
  }

  // The sums of inputs [begin, end). `wait`: for the kernel before, which wrote x.
  __device__ __forceinline__ void Run(int begin, int end, bool wait,
                                      float (&sums)[kParts][kOf / 2]) const {
    const int steps = (end - begin + kLongStep - 1) / kLongStep;
    if (wait) GridDependencyWait();
    // With three stages the copies into one start beside the products of the next; two are both
    // filled, as copies of one alone are too little under way.
    constexpr int kAhead = kStages > 2 ? kStages - 1 : kStages;
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      if (s < steps) Copy(s, begin + s * kLongStep, end);
      CommitCopies();
    }
    int stage = 0;
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
      WaitForCopies<kAhead - 1>();
      ProxyFence();
      __syncthreads();
      Multiply(stage, sums);
      if constexpr (kAhead == kStages) {
        MmaWait<0>();
        __syncthreads();
      }
      const int next = s + kAhead;
      if (next < steps) {
        const int to_stage = stage + kAhead - (stage + kAhead >= kStages ? kStages : 0);
        Copy(to_stage, begin + next * kLongStep, end);
      }
      CommitCopies();
      MmaWait<0>();
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    WaitForCopies<0>();
    __syncthreads();
  }

  // The block's sums [member][kSumStride], where the ring was.
  static __device__ __forceinline__ void Put(const float (&sums)[kParts][kOf / 2], float* parts) {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    float* to = parts + row * kSumStride + threadIdx.x % 4 * 2;
#pragma unroll
    for (int p = 0; p < kParts; ++p)
#pragma unroll
      for (int j = 0; j < kOf / 8; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float2 pair = {sums[p][4 * j + 2 * h], sums[p][4 * j + 2 * h + 1]};
          *reinterpret_cast<float2*>(to + h * 8 * kSumStride + p * kOf + j * 8) = pair;
        }
  }
};

// This block's share of the members, summed over the cluster in its order.
template <int kRanks, int kCluster>
__device__ __forceinline__ void StoreLong(const LoraStep& step, const LongTile& tile,
                                          const RankBlocks& ranks, int first, uint32_t parts) {
  constexpr int kQuads = kRanks / 4;
  constexpr int kShare = kLongMembers / kCluster;
  constexpr int kStride = LongPass<kRanks>::kSumStride * 4;
  const int from = blockIdx.x % kCluster * kShare;
  const int quads = min(kShare, tile.members - from) * kQuads;
#pragma unroll 2
  for (int i = threadIdx.x; i < quads; i += kLongThreads) {
    const int member = from + i / kQuads;
    const uint32_t part = parts + member * kStride + i % kQuads * 16;
    float add[kCluster][4];
#pragma unroll
    for (int c = 0; c < kCluster; ++c) LoadRemote(RemoteAddress(part, c), add[c]);
    float4 sum = {};
#pragma unroll
    for (int c = 0; c < kCluster; ++c) {
      sum.x += add[c][0], sum.y += add[c][1], sum.z += add[c][2], sum.w += add[c][3];
    }
    const RankBlock block = ranks.At(first + i % kQuads / 2);
    if (block.target >= 0) StoreQuad(step, block, tile.member + member, i % kQuads, sum);
  }
}

template <int kRanks>
__device__ __forceinline__ void StoreLong(const LoraStep& step, const LongTile& tile,
                                          const RankBlocks& ranks, int first, int cluster,
                                          uint32_t parts) {
  if (cluster == 8) return StoreLong<kRanks, 8>(step, tile, ranks, first, parts);
  if (cluster == 4) return StoreLong<kRanks, 4>(step, tile, ranks, first, parts);
  if (cluster == 2) return StoreLong<kRanks, 2>(step, tile, ranks, first, parts);
  StoreLong<kRanks, 1>(step, tile, ranks, first, parts);
}

// kRanks ranks of a tile from block `first` on.
template <int kRanks>
__device__ __forceinline__ void ShrinkPass(const LoraStep& step, const LoraTargets& targets,
                                           const LongTile& tile, const RankBlocks& ranks, int first,
                                           const __nv_bfloat16* x, int cluster, int slice,
                                           float4* shared) {
  using Pass = LongPass<kRanks>;
  const int begin = static_cast<int>(blockIdx.x % cluster) * slice;
  const int end = min(targets.in, begin + slice);
  float sums[Pass::kParts][Pass::kOf / 2] = {};
  LongRows& rows = *reinterpret_cast<LongRows*>(shared + kLongRingBytes / sizeof(float4));
  rows.Set(step, targets, tile, ranks, first);
  Pass(x, targets.in, step.slab, rows, SharedAddress(shared)).Run(begin, end, first == 0, sums);
  float* parts = reinterpret_cast<float*>(shared);
  Pass::Put(sums, parts);
  cooperative_groups::this_cluster().sync();
  StoreLong<kRanks>(step, tile, ranks, first, cluster, SharedAddress(parts));
  // What a block read of the others' it has: the ring may be filled again.
  ClusterArrive();
  ClusterWait();
}

// grid [cluster · tiles]. `slice`: LongSlice.
__global__ void __launch_bounds__(kLongThreads, 2)
    ShrinkLongKernel(LoraStep step, LoraTargets targets, const __nv_bfloat16* x, int cluster,
                     int slice) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) float4 long_shared[];
  GridLaunchDependents();
  const LongTile tile = LongTileAt<kLongMembers>(step, blockIdx.x / cluster);
  if (tile.members > 0) {
    const RankBlocks ranks(tile.sites, targets);
    int first = 0;
    const auto pass = [&](auto of) {
      ShrinkPass<decltype(of)::value>(step, targets, tile, ranks, first, x, cluster, slice,
                                      long_shared);
      first += decltype(of)::value / 8;
    };
    while (first < ranks.count) {
      const int left = ranks.count - first;
      if (left <= 2) {
        pass(std::integral_constant<int, 16>());
      } else if (left <= 8) {
        pass(std::integral_constant<int, 64>());
      } else if (left <= 16) {
        pass(std::integral_constant<int, 128>());
      } else {
        pass(std::integral_constant<int, 192>());
      }
    }
  }
  if (blockIdx.x == 0) GridDependencyWait();
#endif
}

}  // namespace rootstock::kernels::cuda
