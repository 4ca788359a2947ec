// Shrink of decode steps: what four warps do. A work item is (group, up to 8 of its members, 16
// ranks of a target, split of the inputs): 64 KB of A, in two halves. Items go round-robin to a
// persistent grid; each warp finds them by a scan over the groups, and the next item's rows while
// the present one's are on their way. In the mma the rows are ranks and the columns members. Blocks
// are small enough to run beside those of the GEMM that streams the base's weights; not beside its
// widest tile for 64 tokens, whose registers leave room on the spare SMs alone.
#pragma once

#include "kernels/lora/lora_shrink.cuh"

namespace rootstock::kernels::cuda {

constexpr int kDecodeThreads = 128;
constexpr int kDecodeWarps = kDecodeThreads / 32;
constexpr int kItemMembers = 8;
constexpr int kWarpInputs = kSplitInputs / kDecodeWarps;
constexpr int kItemRanks = 16;
constexpr int kHalfInputs = kWarpInputs / 2;
constexpr int kHalfSteps = kHalfInputs / 32;  // loads of a row of a lane

// The four warps that share items may be a block or part of one, which may have kSets of them.
__device__ __forceinline__ int DecodeWarp() { return threadIdx.x / 32 % kDecodeWarps; }
template <int kSets = 1>
__device__ __forceinline__ int DecodeSet() {
  return kSets == 1 ? 0 : threadIdx.x / kDecodeThreads % kSets;
}
template <int kSets = 1>
__device__ __forceinline__ void SyncDecodeWarps() {
  if constexpr (kSets == 1) {
    asm volatile("bar.sync 3, %0;" ::"n"(kDecodeThreads) : "memory");
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(3 + 3 * DecodeSet<kSets>()), "n"(kDecodeThreads)
                 : "memory");
  }
}

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
      : step_(step), targets_(targets), splits_(splits), num_groups_(LoadKept(step.num_groups)) {
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
      const int blocks = RankBlocks(rank);
      if (block >= 0 && block < blocks) {
        item.target = t;
        item.lora_rank = rank;
        item.first_rank = block * kItemRanks;
      }
      block -= blocks;
    }
    const auto sites = reinterpret_cast<unsigned long long>(group_.sites);
    const auto* of_owner = reinterpret_cast<const LoraSiteEntry*>(__shfl_sync(~0u, sites, owner));
    item.site = &SiteOf(of_owner, targets_, item.target);
    return item;
  }

 private:
  static __device__ int RankBlocks(int rank) { return (rank + kItemRanks - 1) / kItemRanks; }
  static __device__ int Chunks(int count) { return (count + kItemMembers - 1) / kItemMembers; }

  __device__ void Load(int first, int before) {
    const int lane = threadIdx.x % 32;
    first_ = first;
    group_ = {};
    // The first groups are not kept waiting for their number: entries behind it are empty.
    if (first + lane < step_.max_groups && (first == 0 || first + lane < num_groups_)) {
      group_ = LoadKept(step_.groups + first + lane);
    }
    int blocks = 0;
#pragma unroll
    for (int t = 0; t < kMaxLoraTargets; ++t) {
      rank_[t] = 0;
      if (group_.count > 0 && t < targets_.count) {
        rank_[t] = LoadKept(&SiteOf(group_.sites, targets_, t).lora_rank);
      }
      blocks += RankBlocks(rank_[t]);
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

// What a lane needs of an item: its rows of A and x from its first input on, how many inputs there
// are from there, and where the item's sums go.
struct ItemRows {
  const __nv_bfloat16* a[2] = {};
  const __nv_bfloat16* x = nullptr;
  int inputs = 0;
  int members = 0;
  float* v = nullptr;
};

// The tables of an item ahead, by a chain of loads: Begin, Continue and Rows each need what the one
// before has loaded, and have other loads to wait for between them.
class ItemTables {
 public:
  __device__ __forceinline__ void Begin(const LoraStep& step, const DecodeItem& item, int in,
                                        int splits) {
    const int g = threadIdx.x % 32 / 4;
    members_ = item.valid ? item.members : 0;
    ranks_ = 0;
    token_ = -1;
    if (!item.valid) return;
    k_ = (item.split * kDecodeWarps + DecodeWarp()) * kWarpInputs +
         8 * static_cast<int>(threadIdx.x % 4);
    v_ = VOf(step, splits, item.member, item.target) + item.split * PaddedRank(item.lora_rank) +
         item.first_rank;
    if (g < members_) token_ = LoadKept(step.tokens + item.member + g);
    first_ = item.first_rank + g;
    ranks_ = item.lora_rank - first_;
    a_ = LoadKept(&item.site->a);
  }
  __device__ __forceinline__ void Continue() {
#pragma unroll
    for (int h = 0; h < 2; ++h) offset_[h] = 8 * h < ranks_ ? LoadKept(a_ + first_ + 8 * h) : 0;
  }
  __device__ __forceinline__ ItemRows Rows(const LoraStep& step, const __nv_bfloat16* x,
                                           int in) const {
    ItemRows rows;
    rows.members = members_;
    if (members_ == 0) return rows;
    rows.inputs = in - k_;
    rows.v = v_;
    if (token_ >= 0) rows.x = x + static_cast<size_t>(token_) * in + k_;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (8 * h < ranks_) rows.a[h] = SlabRow<__nv_bfloat16>(step, offset_[h]) + k_;
    }
    return rows;
  }

 private:
  int members_, k_, token_;
  int first_, ranks_;  // the lane's first row of A, and how many there are from there
  float* v_;
  const uint32_t* a_;
  uint32_t offset_[2];
};

template <int kHalf>
__device__ __forceinline__ void LoadHalf(const ItemRows& rows, uint4 (&a)[kHalfSteps][2]) {
#pragma unroll
  for (int s = 0; s < kHalfSteps; ++s)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      a[s][h] = LoadA(rows.a[h], kHalf * kHalfInputs + 32 * s, rows.inputs);
}

// The other half to the second cache: a line of each row a lane.
__device__ __forceinline__ void PrefetchHalf(const ItemRows& rows) {
  static_assert(kHalfInputs == 4 * 64);
  const int ahead = kHalfInputs + 56 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (rows.a[h] != nullptr && ahead < rows.inputs) PrefetchL2(rows.a[h] + ahead);
  }
}

// The products of half of a warp's inputs. x is loaded all at once: beside the GEMM each wait for
// it is long.
template <int kHalf>
__device__ __forceinline__ void MultiplyHalf(const ItemRows& rows, const uint4 (&a)[kHalfSteps][2],
                                             float (&sum)[4]) {
  uint4 x[kHalfSteps];
#pragma unroll
  for (int s = 0; s < kHalfSteps; ++s) {
    const int at = kHalf * kHalfInputs + 32 * s;
    x[s] = rows.x != nullptr && at < rows.inputs ? LoadL2(rows.x + at) : uint4{};
  }
#pragma unroll
  for (int s = 0; s < kHalfSteps; ++s) {
    MmaBf16(sum, a[s][0].x, a[s][1].x, a[s][0].y, a[s][1].y, x[s].x, x[s].y);
    MmaBf16(sum, a[s][0].z, a[s][1].z, a[s][0].w, a[s][1].w, x[s].z, x[s].w);
  }
}

// The warps' sums of an item, in order, to v: 16 ranks, zeros beyond the adapter's.
template <int kSets>
__device__ __forceinline__ void StoreItem(const ItemRows& rows, int splits, const float (&sum)[4],
                                          float (&part)[kDecodeWarps][kItemMembers][kItemRanks]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    part[DecodeWarp()][2 * (lane % 4) + c % 2][c / 2 * 8 + lane / 4] = sum[c];
  }
  SyncDecodeWarps<kSets>();
  const int member = threadIdx.x % kDecodeThreads / kItemRanks;
  const int rank = threadIdx.x % kItemRanks;
  if (member >= rows.members) return;
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) total += part[w][member][rank];
  rows.v[member * splits * kMaxLoraTargets * kMaxLoraRank + rank] = total;
}

// Two turns of the warps' sums.
using DecodeSums = float[2][kDecodeWarps][kItemMembers][kItemRanks];

// The items of a block, from blockIdx.x on, by four warps of it, or kSets times four. part: of the
// set of warps.
template <int kSets = 1>
__device__ __forceinline__ void ShrinkItems(const LoraStep& step, const LoraTargets& targets,
                                            const __nv_bfloat16* x, int splits, bool x_ready,
                                            DecodeSums& part) {
  GroupScan scan(step, targets, splits);
  int index = blockIdx.x + DecodeSet<kSets>() * gridDim.x;
  int turn = 0;
  ItemTables tables;
  tables.Begin(step, scan.Find(index), targets.in, splits);
  tables.Continue();
  ItemRows rows = tables.Rows(step, x, targets.in);
  uint4 a[kHalfSteps][2];
  LoadHalf<0>(rows, a);
  if (!x_ready) PrefetchHalf(rows);
  tables.Begin(step, scan.Find(index += kSets * gridDim.x), targets.in, splits);
  if (!x_ready && rows.members > 0) GridDependencyWait();
  for (; rows.members > 0; turn ^= 1) {
    float sum[4] = {};
    MultiplyHalf<0>(rows, a, sum);
    LoadHalf<1>(rows, a);
    tables.Continue();
    MultiplyHalf<1>(rows, a, sum);
    const ItemRows next = tables.Rows(step, x, targets.in);
    LoadHalf<0>(next, a);
    tables.Begin(step, scan.Find(index += kSets * gridDim.x), targets.in, splits);
    StoreItem<kSets>(rows, splits, sum, part[turn]);
    rows = next;
  }
}

}  // namespace rootstock::kernels::cuda
