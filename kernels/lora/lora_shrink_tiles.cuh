// What a long step's shrink works on: runs of members of a group, and the ranks of its adapter.
#pragma once

#include "kernels/cuda/vec.cuh"
#include "kernels/lora/lora_device.cuh"

namespace rootstock::kernels::cuda {

struct LongTile {
  int member = 0, members = 0;  // the first, and how many; 0: no such tile
  const LoraSiteEntry* sites = nullptr;
};

// A tile of kMembers. The same for all lanes, all of which must call it.
template <int kMembers>
__device__ __forceinline__ LongTile LongTileAt(const LoraStep& step, int index) {
  const int lane = threadIdx.x % 32;
  // Those behind the last group are empty: its number need not be known.
  for (int first = 0; first < step.max_groups; first += 32) {
    LoraGroupEntry group;
    if (first + lane < step.max_groups) group = LoadKept(step.groups + first + lane);
    const int tiles = (group.count + kMembers - 1) / kMembers;
    int end = tiles;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const int below = __shfl_up_sync(~0u, end, by);
      if (lane >= by) end += below;
    }
    const unsigned beyond = __ballot_sync(~0u, end > index);
    if (beyond != 0) {
      const int at = __ffs(beyond) - 1;
      const int skip = (index - __shfl_sync(~0u, end - tiles, at)) * kMembers;
      const auto sites = __shfl_sync(~0u, reinterpret_cast<unsigned long long>(group.sites), at);
      return {__shfl_sync(~0u, group.begin, at) + skip,
              min(kMembers, __shfl_sync(~0u, group.count, at) - skip),
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

// The four ranks `quad` % 2 of a block of them to v of a member, zeros beyond the adapter's.
__device__ __forceinline__ void StoreQuad(const LoraStep& step, const RankBlock& block, int member,
                                          int quad, float4 sum) {
  const int rank = block.first + quad % 2 * 4;
  sum.x = rank < block.lora_rank ? sum.x : 0.0f;
  sum.y = rank + 1 < block.lora_rank ? sum.y : 0.0f;
  sum.z = rank + 2 < block.lora_rank ? sum.z : 0.0f;
  sum.w = rank + 3 < block.lora_rank ? sum.w : 0.0f;
  float* v = VOf(step, 1, member, block.target) + rank;
  *reinterpret_cast<float4*>(v) = sum;
  // The last block of an odd number of them fills up to 16 ranks.
  if (block.first % 16 == 0 && block.first + 8 >= block.lora_rank) {
    *reinterpret_cast<float4*>(v + 8) = {};
  }
}

}  // namespace rootstock::kernels::cuda
