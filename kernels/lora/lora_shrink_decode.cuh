// Shrink of decode steps. A work item is (group, up to 32 of its members, 8 ranks of a target,
// split of the inputs): 32 KB of A. Items go round-robin to a persistent grid; each warp finds them
// by a scan over the groups, and the next item's rows while the present one's are on their way.
// Blocks are small enough to run beside those of the GEMM that streams the base's weights.
#pragma once

#include "kernels/lora/lora_shrink.cuh"

namespace rootstock::kernels::cuda {

constexpr int kDecodeThreads = 128;
constexpr int kDecodeWarps = kDecodeThreads / 32;
constexpr int kItemMembers = 32;
constexpr int kWarpInputs = kSplitInputs / kDecodeWarps;
constexpr int kItemSteps = kWarpInputs / 32;  // loads of A of a lane

struct DecodeItem {
  bool valid = false;
  int member = 0, members = 0;  // the first, and how many
  int target = 0, lora_rank = 0, first_rank = 0;
  int split = 0;
  const LoraSiteEntry* site = nullptr;
};

// Items of 32 groups at a time, a lane each. All lanes of a warp use it together.
class GroupScan {
 public:
  __device__ GroupScan(const LoraStep& step, const LoraTargets& targets, int splits)
      : step_(step), targets_(targets), splits_(splits), num_groups_(*step.num_groups) {
    Load(0, 0);
  }

  // Item `index`; calls must go up.
  __device__ DecodeItem Find(int index) {
    while (index >= __shfl_sync(~0u, end_, 31)) {
      if (first_ + 32 >= num_groups_) return {};
      Load(first_ + 32, __shfl_sync(~0u, end_, 31));
    }
    const int owner = __ffs(__ballot_sync(~0u, index < end_)) - 1;
    index -= __shfl_sync(~0u, end_ - items_, owner);
    const int count = __shfl_sync(~0u, group_.count, owner);
    const int chunks = Chunks(count);
    DecodeItem item;
    item.valid = true;
    item.split = index % splits_;
    index /= splits_;
    const int chunk = index % chunks;
    int block = index / chunks;
    item.member = __shfl_sync(~0u, group_.begin, owner) + chunk * kItemMembers;
    item.members = min(kItemMembers, count - chunk * kItemMembers);
#pragma unroll
    for (int t = 0; t < kMaxLoraTargets; ++t) {
      const int rank = __shfl_sync(~0u, rank_[t], owner);
      const int blocks = (rank + 7) / 8;
      if (block >= 0 && block < blocks) {
        item.target = t;
        item.lora_rank = rank;
        item.first_rank = block * 8;
      }
      block -= blocks;
    }
    const auto sites = reinterpret_cast<unsigned long long>(group_.sites);
    const auto* of_owner = reinterpret_cast<const LoraSiteEntry*>(__shfl_sync(~0u, sites, owner));
    item.site = &SiteOf(of_owner, targets_, item.target);
    return item;
  }

 private:
  static __device__ int Chunks(int count) { return (count + kItemMembers - 1) / kItemMembers; }

  __device__ void Load(int first, int before) {
    const int lane = threadIdx.x % 32;
    first_ = first;
    group_ = {};
    // The first groups are not kept waiting for their number: entries behind it are empty.
    if (first + lane < step_.max_groups && (first == 0 || first + lane < num_groups_)) {
      group_ = step_.groups[first + lane];
    }
    int blocks = 0;
#pragma unroll
    for (int t = 0; t < kMaxLoraTargets; ++t) {
      rank_[t] = 0;
      if (group_.count > 0 && t < targets_.count) {
        rank_[t] = SiteOf(group_.sites, targets_, t).lora_rank;
      }
      blocks += (rank_[t] + 7) / 8;
    }
    items_ = blocks * Chunks(group_.count) * splits_;
    end_ = items_;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(~0u, end_, step);
      if (lane >= step) end_ += below;
    }
    end_ += before;
  }

  const LoraStep& step_;
  const LoraTargets& targets_;
  int splits_, num_groups_;
  int first_;
  LoraGroupEntry group_;
  int rank_[kMaxLoraTargets];
  int items_, end_;  // end_: of this lane's items and all before
};

// The row of A and the first rows of x of a lane at an item.
struct ItemRows {
  const __nv_bfloat16* a = nullptr;
  const __nv_bfloat16* x[2] = {};
};

__device__ __forceinline__ const __nv_bfloat16* MemberRow(const LoraStep& step,
                                                          const __nv_bfloat16* x, int in,
                                                          const DecodeItem& item, int m) {
  return m < item.members ? x + static_cast<size_t>(step.tokens[item.member + m]) * in : nullptr;
}

__device__ __forceinline__ ItemRows RowsOf(const LoraStep& step, const DecodeItem& item,
                                           const __nv_bfloat16* x, int in) {
  const int g = threadIdx.x % 32 / 4;
  ItemRows rows;
  if (!item.valid) return rows;
  rows.x[0] = MemberRow(step, x, in, item, g);
  rows.x[1] = MemberRow(step, x, in, item, g + 8);
  if (item.first_rank + g < item.lora_rank) {
    rows.a = SlabRow<__nv_bfloat16>(step, __ldg(item.site->a + item.first_rank + g));
  }
  return rows;
}

// 16 members' products of a warp's inputs, x two loads at a time.
template <typename BetweenLoads>
__device__ __forceinline__ void MultiplyItem(const ItemRows& rows, const uint4 (&a)[kItemSteps],
                                             int k, int in, float (&sum)[4],
                                             const BetweenLoads& between) {
  constexpr int kPart = kItemSteps / 8;
#pragma unroll
  for (int first = 0; first < kItemSteps; first += kPart) {
    uint4 xs[kPart][2];
#pragma unroll
    for (int s = 0; s < kPart; ++s) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int at = k + 32 * (first + s);
        xs[s][h] = rows.x[h] != nullptr && at < in ? LoadL2(rows.x[h] + at) : uint4{};
      }
    }
    if (first == 0) between();
#pragma unroll
    for (int s = 0; s < kPart; ++s) AddInputs(xs[s], a[first + s], sum);
  }
}

// First input of a lane at an item.
__device__ __forceinline__ int InputOf(const DecodeItem& item) {
  const int warp = threadIdx.x / 32;
  return (item.split * kDecodeWarps + warp) * kWarpInputs + 8 * static_cast<int>(threadIdx.x % 4);
}

__device__ __forceinline__ void LoadItem(const ItemRows& rows, const DecodeItem& item, int in,
                                         uint4 (&a)[kItemSteps]) {
  const int k = InputOf(item);
#pragma unroll
  for (int s = 0; s < kItemSteps; ++s) a[s] = LoadA(rows.a, k + 32 * s, in);
}

// grid: any. x_ready: as LoraShrink says; what was written ahead of the kernel before is in the
// second cache.
__global__ void __launch_bounds__(kDecodeThreads, 4)
    ShrinkDecodeKernel(LoraStep step, LoraTargets targets, const __nv_bfloat16* x, int splits,
                       bool x_ready) {
  __shared__ float part[2][kDecodeWarps][16][8];
  GridLaunchDependents();
  const int lane = threadIdx.x % 32;
  GroupScan scan(step, targets, splits);
  int index = blockIdx.x;
  int turn = 0;
  DecodeItem item = scan.Find(index);
  ItemRows rows = RowsOf(step, item, x, targets.in);
  uint4 a[kItemSteps];
  LoadItem(rows, item, targets.in, a);
  if (!x_ready && item.valid) GridDependencyWait();
  while (item.valid) {
    DecodeItem next;
    ItemRows next_rows;
    for (int m = 0; m < item.members; m += 16) {
      if (m > 0) {
        rows.x[0] = MemberRow(step, x, targets.in, item, m + lane / 4);
        rows.x[1] = MemberRow(step, x, targets.in, item, m + 8 + lane / 4);
      }
      float sum[4] = {};
      MultiplyItem(rows, a, InputOf(item), targets.in, sum, [&] {
        if (m > 0) return;
        next = scan.Find(index + gridDim.x);
        next_rows = RowsOf(step, next, x, targets.in);
      });
      if (m + 16 >= item.members) LoadItem(next_rows, next, targets.in, a);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        part[turn][threadIdx.x / 32][c / 2 * 8 + lane / 4][2 * (lane % 4) + c % 2] = sum[c];
      }
      __syncthreads();
      const int member = threadIdx.x / 8;
      if (m + member < item.members) {
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < kDecodeWarps; ++w) total += part[turn][w][member][threadIdx.x % 8];
        StoreRank(step, splits, item.split, item.member + m + member, item.target, item.lora_rank,
                  item.first_rank + threadIdx.x % 8, total);
      }
      turn ^= 1;
    }
    index += gridDim.x;
    item = next;
    rows = next_rows;
  }
  if (blockIdx.x == 0) GridDependencyWait();
}

}  // namespace rootstock::kernels::cuda
