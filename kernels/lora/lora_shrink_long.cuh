// Shrink of long steps: work items (group, up to 32 of its members, kBlocks blocks of 8 ranks over
// all targets) go round-robin to a persistent grid, so that x is read once for several blocks.
#pragma once

#include "kernels/lora/lora_shrink.cuh"

namespace rootstock::kernels::cuda {

constexpr int kShrinkMembers = 32;  // of an item
constexpr int kShrinkMaxGroups = 1024;

struct ShrinkItem {
  int member, members;  // the first, and how many
  int block;            // of 8 ranks, over all targets
  int split;
  const LoraSiteEntry* sites;
};

// Blocks of 8 ranks of target `i`.
__device__ __forceinline__ int RankBlocks(const LoraSiteEntry* sites, const LoraTargets& targets,
                                          int i) {
  return i < targets.count ? (SiteOf(sites, targets, i).lora_rank + 7) / 8 : 0;
}

__device__ __forceinline__ int AllRankBlocks(const LoraSiteEntry* sites,
                                             const LoraTargets& targets) {
  int blocks = 0;
#pragma unroll
  for (int i = 0; i < kMaxLoraTargets; ++i) blocks += RankBlocks(sites, targets, i);
  return blocks;
}

// end[g] = items of groups 0 … g. All threads must call it; returns their number.
template <int kBlocks>
__device__ __forceinline__ int CountItems(const LoraStep& step, const LoraTargets& targets,
                                          int splits, int (&end)[kShrinkMaxGroups]) {
  __shared__ int of_warp[kShrinkWarps];
  const int groups = *step.num_groups;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  int before = 0;
  for (int first = 0; first < groups; first += kShrinkThreads) {
    const int g = first + threadIdx.x;
    int items = 0;
    if (g < groups) {
      const LoraGroupEntry group = step.groups[g];
      const int blocks = AllRankBlocks(group.sites, targets);
      items = (group.count + kShrinkMembers - 1) / kShrinkMembers *
              ((blocks + kBlocks - 1) / kBlocks) * splits;
    }
#pragma unroll
    for (int step_ = 1; step_ < 32; step_ *= 2) {
      const int below = __shfl_up_sync(~0u, items, step_);
      if (lane >= step_) items += below;
    }
    if (lane == 31) of_warp[warp] = items;
    __syncthreads();
    int total = 0;
#pragma unroll
    for (int w = 0; w < kShrinkWarps; ++w) {
      if (w < warp) items += of_warp[w];
      total += of_warp[w];
    }
    if (g < groups) end[g] = before + items;
    before += total;
    __syncthreads();
  }
  return before;
}

template <int kBlocks>
__device__ __forceinline__ ShrinkItem ItemAt(const LoraStep& step, const LoraTargets& targets,
                                             int splits, const int (&end)[kShrinkMaxGroups],
                                             int index) {
  int low = 0;
  int high = *step.num_groups - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (end[middle] <= index) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low > 0) index -= end[low - 1];
  const LoraGroupEntry group = step.groups[low];
  const int chunks = (group.count + kShrinkMembers - 1) / kShrinkMembers;
  const int chunk = index % chunks;
  index /= chunks;
  return {group.begin + chunk * kShrinkMembers,
          min(kShrinkMembers, group.count - chunk * kShrinkMembers), index / splits * kBlocks,
          index % splits, group.sites};
}

// Where a block of 8 ranks lies: target -1 beyond the last.
struct RankBlock {
  int target, first, lora_rank;
};
__device__ __forceinline__ RankBlock BlockAt(const LoraSiteEntry* sites, const LoraTargets& targets,
                                             int block) {
#pragma unroll
  for (int i = 0; i < kMaxLoraTargets; ++i) {
    const int blocks = RankBlocks(sites, targets, i);
    if (block < blocks) return {i, block * 8, SiteOf(sites, targets, i).lora_rank};
    block -= blocks;
  }
  return {-1, 0, 0};
}

// part [warp][member][rank of the block] to v, added over the warps in order.
__device__ __forceinline__ void StoreBlock(const LoraStep& step, const ShrinkItem& item,
                                           const RankBlock& block, int splits,
                                           const float (&part)[kShrinkWarps][kShrinkMembers][8]) {
  const int member = threadIdx.x / 8;
  const int rank = threadIdx.x % 8;
  if (block.target < 0 || member >= item.members) return;
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kShrinkWarps; ++w) sum += part[w][member][rank];
  StoreRank(step, splits, item.split, item.member + member, block.target, block.lora_rank,
            block.first + rank, sum);
}

// grid: any. `warp_inputs`: inputs of a warp, a multiple of 32.
template <int kBlocks>
__global__ void __launch_bounds__(kShrinkThreads)
    ShrinkLongKernel(LoraStep step, LoraTargets targets, const __nv_bfloat16* x, int splits,
                     int warp_inputs) {
  __shared__ int end[kShrinkMaxGroups];
  __shared__ float part[kShrinkWarps][kShrinkMembers][8];
  GridLaunchDependents();
  const int items = CountItems<kBlocks>(step, targets, splits, end);
  const int g = threadIdx.x % 32 / 4;
  const int q = threadIdx.x % 4;
  const int warp = threadIdx.x / 32;
  GridDependencyWait();
  for (int index = blockIdx.x; index < items; index += gridDim.x) {
    const ShrinkItem item = ItemAt<kBlocks>(step, targets, splits, end, index);
    const int k_begin = (item.split * kShrinkWarps + warp) * warp_inputs;
    const int k_end = min(targets.in, k_begin + warp_inputs);
    RankBlock block[kBlocks];
    const __nv_bfloat16* a_row[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      block[b] = BlockAt(item.sites, targets, item.block + b);
      const int r = block[b].first + g;
      a_row[b] = nullptr;
      if (block[b].target >= 0 && r < block[b].lora_rank) {
        const LoraSiteEntry& site = SiteOf(item.sites, targets, block[b].target);
        a_row[b] = SlabRow<__nv_bfloat16>(step, __ldg(site.a + r));
      }
    }
    const __nv_bfloat16* x_row[2][2];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int m = t * 8 + g;
      const bool live = m < item.members;
      x_row[t / 2][t % 2] =
          live ? x + static_cast<size_t>(step.tokens[item.member + m]) * targets.in : nullptr;
    }
    float sums[2][kBlocks][4] = {};
#pragma unroll 2
    for (int k = k_begin + 8 * q; k - 8 * q < k_end; k += 32) {
      uint4 a[kBlocks];
      uint4 xs[2][2];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) a[b] = LoadX(a_row[b], k, k_end);
#pragma unroll
      for (int t = 0; t < 4; ++t) xs[t / 2][t % 2] = LoadX(x_row[t / 2][t % 2], k, k_end);
#pragma unroll
      for (int t = 0; t < 2; ++t)
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) AddInputs(xs[t], a[b], sums[t][b]);
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      __syncthreads();
#pragma unroll
      for (int t = 0; t < 2; ++t)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          part[warp][t * 16 + c / 2 * 8 + g][2 * q + c % 2] = sums[t][b][c];
        }
      __syncthreads();
      StoreBlock(step, item, block[b], splits, part);
    }
  }
}

}  // namespace rootstock::kernels::cuda
