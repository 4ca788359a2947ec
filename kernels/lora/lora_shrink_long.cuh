// Shrink of long steps: a cluster of two blocks takes 32 members of a group and its sixteen warps
// share out the inputs, so that x is read once for up to 48 ranks of all targets and many loads are
// under way at the same time. Sums of the warps and the blocks are added in the order of the
// inputs.
#pragma once

#include <cooperative_groups.h>

#include "kernels/lora/lora_shrink.cuh"

namespace rootstock::kernels::cuda {

constexpr int kLongMembers = 32;  // of a tile
constexpr int kLongBlocks = 6;    // of 8 ranks: what one pass over x serves
constexpr int kLongCluster = 2;
constexpr int kLongSumStride = 8 * kLongBlocks + 4;  // floats; the pad spreads the banks
constexpr int kLongSharedBytes = (kShrinkWarps + 1) * kLongMembers * kLongSumStride * 4;

// Inputs of a warp.
inline int LongSlice(int in, int cluster) {
  const int warps = cluster * kShrinkWarps;
  return (in + warps * 64 - 1) / (warps * 64) * 64;
}

struct LongTile {
  int member = 0, members = 0;  // the first, and how many; 0: no such tile
  const LoraSiteEntry* sites = nullptr;
};

// The same for all lanes, all of which must call it.
__device__ __forceinline__ LongTile LongTileAt(const LoraStep& step, int index) {
  const int groups = *step.num_groups;
  const int lane = threadIdx.x % 32;
  for (int first = 0; first < groups; first += 32) {
    LoraGroupEntry group;
    if (first + lane < groups) group = step.groups[first + lane];
    const int tiles = (group.count + kLongMembers - 1) / kLongMembers;
    int end = tiles;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const int below = __shfl_up_sync(~0u, end, by);
      if (lane >= by) end += below;
    }
    const unsigned beyond = __ballot_sync(~0u, end > index);
    if (beyond != 0) {
      const int at = __ffs(beyond) - 1;
      const int skip = (index - __shfl_sync(~0u, end - tiles, at)) * kLongMembers;
      const auto sites = __shfl_sync(~0u, reinterpret_cast<unsigned long long>(group.sites), at);
      return {__shfl_sync(~0u, group.begin, at) + skip,
              min(kLongMembers, __shfl_sync(~0u, group.count, at) - skip),
              reinterpret_cast<const LoraSiteEntry*>(sites)};
    }
    index -= __shfl_sync(~0u, end, 31);
  }
  return {};
}

// Where a block of 8 ranks lies: target -1 beyond the last.
struct RankBlock {
  int target = -1, first = 0, lora_rank = 0;
};

// The ranks of a tile's adapter at the site, in blocks of 8 over all targets.
struct RankBlocks {
  int lora_rank[kMaxLoraTargets] = {};
  int count = 0;

  __device__ RankBlocks(const LoraSiteEntry* sites, const LoraTargets& targets) {
#pragma unroll
    for (int i = 0; i < kMaxLoraTargets; ++i) {
      if (i < targets.count) lora_rank[i] = SiteOf(sites, targets, i).lora_rank;
      count += (lora_rank[i] + 7) / 8;
    }
  }
  __device__ __forceinline__ RankBlock At(int block) const {
#pragma unroll
    for (int i = 0; i < kMaxLoraTargets; ++i) {
      const int blocks = (lora_rank[i] + 7) / 8;
      if (block < blocks) return {i, block * 8, lora_rank[i]};
      block -= blocks;
    }
    return {};
  }
};

// Rows that a lane reads: of A, one of each block of 8 ranks; of x, one of each 8 members. Some
// valid row where there is none, so that loads need no branch: such sums go nowhere.
struct LongRows {
  const __nv_bfloat16* a[kLongBlocks];
  const __nv_bfloat16* in;
  uint32_t x[kLongMembers / 8];  // elements after `in`

  __device__ __forceinline__ void SetRanks(const LoraStep& step, const LoraTargets& targets,
                                           const LoraSiteEntry* sites, const RankBlocks& ranks,
                                           int first) {
#pragma unroll
    for (int b = 0; b < kLongBlocks; ++b) {
      const RankBlock block = ranks.At(min(first + b, ranks.count - 1));
      const int r = min(block.first + static_cast<int>(threadIdx.x) % 32 / 4, block.lora_rank - 1);
      a[b] = SlabRow<__nv_bfloat16>(step, __ldg(SiteOf(sites, targets, block.target).a + r));
    }
  }
  __device__ __forceinline__ void SetMembers(const LoraStep& step, const LongTile& tile,
                                             const __nv_bfloat16* from, int width) {
    in = from;
#pragma unroll
    for (int m = 0; m < kLongMembers / 8; ++m) {
      const int member = min(m * 8 + static_cast<int>(threadIdx.x) % 32 / 4, tile.members - 1);
      x[m] = static_cast<uint32_t>(step.tokens[tile.member + member]) * width;
    }
  }

  // sums += the products of inputs [begin, end), with loads kAhead steps ahead. kOf: blocks in use.
  template <int kOf, int kAhead>
  __device__ __forceinline__ void Multiply(int begin, int end,
                                           float (&sums)[kLongMembers / 16][kLongBlocks][4]) const {
    uint4 as[kAhead + 1][kOf];
    uint4 xs[kAhead + 1][kLongMembers / 16][2];
    const auto load = [&](int slot, int k) {
      const bool beyond = k >= end;
      k = beyond ? begin : k;
#pragma unroll
      for (int m = 0; m < kLongMembers / 8; ++m) {
        xs[slot][m / 2][m % 2] = *reinterpret_cast<const uint4*>(in + (x[m] + k));
      }
#pragma unroll
      for (int b = 0; b < kOf; ++b) as[slot][b] = LoadX(a[b], k, beyond ? 0 : end);
    };
    const int lane = 8 * static_cast<int>(threadIdx.x % 4);
    if (begin >= end) return;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load(i, begin + lane + 32 * i);
    // The whole warp goes on together, as its products want it: what lies beyond is zero.
#pragma unroll 1
    for (int k = begin; k < end; k += 32 * (kAhead + 1)) {
#pragma unroll
      for (int i = 0; i <= kAhead; ++i) {
        load((i + kAhead) % (kAhead + 1), k + lane + 32 * (i + kAhead));
#pragma unroll
        for (int t = 0; t < kLongMembers / 16; ++t)
#pragma unroll
          for (int b = 0; b < kOf; ++b) AddInputs(xs[i][t], as[i][b], sums[t][b]);
      }
    }
  }
};

__device__ __forceinline__ void LongSync() {
#if __CUDA_ARCH__ >= 900
  cooperative_groups::this_cluster().sync();
#else
  __syncthreads();
#endif
}

// parts [warps + 1][members][ranks]: each warp's sums, then the block's; then this block's share of
// the members over the cluster: four ranks a thread.
__device__ __forceinline__ void StoreLong(const LoraStep& step, const LongTile& tile,
                                          const RankBlocks& ranks, int first, int cluster,
                                          const float (&sums)[kLongMembers / 16][kLongBlocks][4],
                                          float* parts) {
  constexpr int kPart = kLongMembers * kLongSumStride;
  const int lane = threadIdx.x % 32;
  float* mine = parts + threadIdx.x / 32 * kPart + lane / 4 * kLongSumStride + lane % 4 * 2;
#pragma unroll
  for (int t = 0; t < kLongMembers / 16; ++t)
#pragma unroll
    for (int b = 0; b < kLongBlocks; ++b) {
      float* to = mine + t * 16 * kLongSumStride + b * 8;
      *reinterpret_cast<float2*>(to) = {sums[t][b][0], sums[t][b][1]};
      *reinterpret_cast<float2*>(to + 8 * kLongSumStride) = {sums[t][b][2], sums[t][b][3]};
    }
  __syncthreads();
  float* total = parts + kShrinkWarps * kPart;
  for (int i = threadIdx.x; i < kPart / 4; i += kShrinkThreads) {
    float4 sum = {};
#pragma unroll
    for (int w = 0; w < kShrinkWarps; ++w) {
      const float4 add = reinterpret_cast<const float4*>(parts + w * kPart)[i];
      sum.x += add.x, sum.y += add.y, sum.z += add.z, sum.w += add.w;
    }
    reinterpret_cast<float4*>(total)[i] = sum;
  }
  LongSync();
  constexpr int kQuads = 2 * kLongBlocks;
  const int share = kLongMembers / cluster;
  const int from = blockIdx.x % cluster * share;
  for (int i = threadIdx.x; i < share * kQuads; i += kShrinkThreads) {
    const int member = from + i / kQuads;
    const RankBlock block = ranks.At(first + i % kQuads / 2);
    if (block.target < 0 || member >= tile.members) continue;
    float4 sum = {};
    for (int c = 0; c < cluster; ++c) {
      const float* part = total + member * kLongSumStride + i % kQuads * 4;
#if __CUDA_ARCH__ >= 900
      part = cooperative_groups::this_cluster().map_shared_rank(part, c);
#endif
      const float4 add = *reinterpret_cast<const float4*>(part);
      sum.x += add.x, sum.y += add.y, sum.z += add.z, sum.w += add.w;
    }
    const int rank = block.first + i % 2 * 4;
    sum.x = rank < block.lora_rank ? sum.x : 0.0f;
    sum.y = rank + 1 < block.lora_rank ? sum.y : 0.0f;
    sum.z = rank + 2 < block.lora_rank ? sum.z : 0.0f;
    sum.w = rank + 3 < block.lora_rank ? sum.w : 0.0f;
    float* v = VOf(step, 1, tile.member + member, block.target) + rank;
    *reinterpret_cast<float4*>(v) = sum;
    // The last block of an odd number of them fills up to 16 ranks.
    if (block.first % 16 == 0 && block.first + 8 >= block.lora_rank) {
      *reinterpret_cast<float4*>(v + 8) = {};
    }
  }
  LongSync();
}

// grid [cluster · tiles]; cluster 1 before sm_90. `slice`: LongSlice.
__global__ void __launch_bounds__(kShrinkThreads, 1)
    ShrinkLongKernel(LoraStep step, LoraTargets targets, const __nv_bfloat16* x, int cluster,
                     int slice) {
  extern __shared__ float4 shared[];
  GridLaunchDependents();
  const LongTile tile = LongTileAt(step, blockIdx.x / cluster);
  if (tile.members == 0) {
    if (blockIdx.x == 0) GridDependencyWait();
    return;
  }
  const RankBlocks ranks(tile.sites, targets);
  const int warp = blockIdx.x % cluster * kShrinkWarps + threadIdx.x / 32;
  const int begin = warp * slice;
  const int end = min(targets.in, begin + slice);
  LongRows rows;
  rows.SetMembers(step, tile, x, targets.in);
  for (int first = 0; first < ranks.count; first += kLongBlocks) {
    rows.SetRanks(step, targets, tile.sites, ranks, first);
    if (first == 0) GridDependencyWait();
    float sums[kLongMembers / 16][kLongBlocks][4] = {};
    if (ranks.count - first <= 2) {
      rows.Multiply<2, 4>(begin, end, sums);
    } else if (ranks.count - first <= 4) {
      rows.Multiply<4, 2>(begin, end, sums);
    } else {
      rows.Multiply<kLongBlocks, 2>(begin, end, sums);
    }
    StoreLong(step, tile, ranks, first, cluster, sums, reinterpret_cast<float*>(shared));
  }
  if (blockIdx.x == 0) GridDependencyWait();
}

}  // namespace rootstock::kernels::cuda
