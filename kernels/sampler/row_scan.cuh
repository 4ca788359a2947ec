// Searches in one row of values without sorting it: the k-th highest by digits of its bits, and the
// token at which a running sum by id crosses a goal.
#pragma once

#include <climits>

#include "kernels/sampler/row_group.cuh"

namespace rootstock::kernels::cuda {

// What the blocks of SampleRows keep in shared memory beside the values.
struct RowShared {
  alignas(16) uint32_t histogram[kHistogram];
  alignas(16) uint32_t received[kHistogram];  // slices of the blocks' histograms
  uint64_t top[kFew];                         // of the row, in the first block
  Exchange exchange;
  SampleRow row;
  double uniform;
  int count;
};

// A block's part of the row.
struct Chunk {
  float* values = nullptr;      // [tiles · kTile]; beyond `count`: −∞ as logits, 0 as weights
  double* tile_sums = nullptr;  // [tiles] shared memory
  RowShared* shared = nullptr;
  int tiles = 0;
  int first = 0;  // id of values[0]
  int count = 0;  // of the vocabulary
};

// What a cut keeps: values above `above`, and of those equal to it the ids ≤ last_id.
struct Cut {
  float above = -INFINITY;
  int last_id = INT_MAX;
  __device__ bool Keeps(float v, int id) const {  // without branches
    return static_cast<bool>((v > above) | ((v == above) & (id <= last_id)));
  }
};

// Unsigned order = the floats' order.
__device__ inline uint32_t OrderedKey(float v) {
  const int bits = __float_as_int(v);
  return static_cast<uint32_t>(bits ^ (bits >> 31 | INT_MIN));
}
__device__ inline float FromOrderedKey(uint32_t key) {
  return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}

// A value and its id in one word, whose order is: the higher value, then the lower id.
__device__ inline uint64_t Entry(float v, int id) {
  return static_cast<uint64_t>(OrderedKey(v)) << 32 | ~static_cast<uint32_t>(id);
}
__device__ inline float EntryValue(uint64_t entry) {
  return FromOrderedKey(static_cast<uint32_t>(entry >> 32));
}
__device__ inline int EntryId(uint64_t entry) {
  return static_cast<int>(~static_cast<uint32_t>(entry));
}

// f(float4& values, int i): four values at chunk.values + i; of one thread in ascending order.
template <typename F>
__device__ void ForEachFour(const Chunk& chunk, F f) {
#pragma unroll 1  // code that is run once had better be short
  for (int tile = threadIdx.x / 32; tile < chunk.tiles; tile += kWarps) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = tile * kTile + half * 128 + static_cast<int>(threadIdx.x % 32) * 4;
      f(*reinterpret_cast<float4*>(chunk.values + i), i);
    }
  }
}

// f(float value, int id).
template <typename F>
__device__ void ForEach(const Chunk& chunk, F f) {
  ForEachFour(chunk, [&](const float4& v, int i) {
    const float4 copy = v;
    f(copy.x, chunk.first + i);
    f(copy.y, chunk.first + i + 1);
    f(copy.z, chunk.first + i + 2);
    f(copy.w, chunk.first + i + 3);
  });
}

// Running sums reach a goal at ≥, or (strict) exceed it.
struct Goal {
  double value = 0.0;
  bool strict = false;
  __device__ bool Reached(double sum) const { return strict ? sum > value : sum >= value; }
};

constexpr int kRun = 8;  // amounts that a lane of WarpFind walks

// Of one warp: the first i of [0, n) where before + Σ amount(0 … i) reaches the goal; where
// rounding lets none, the last with amount > 0.
template <typename Amount>
__device__ Crossing WarpFind(int n, double before, Goal goal, Amount amount) {
  const int lane = threadIdx.x % 32;
  int first = 0;
#pragma unroll 1
  for (;;) {  // each lane sums a run; a long one is searched in turn
    const int run = (n + 31) / 32;
    const int begin = first + min(lane * run, n), end = first + min((lane + 1) * run, n);
    double a[kRun] = {}, mine = 0.0;
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      if (begin + j < end) a[j] = amount(begin + j);
      mine += a[j];
    }
#pragma unroll 1
    for (int i = begin + kRun; i < end; ++i) mine += amount(i);
    double upto = mine;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const double other = __shfl_up_sync(kAllLanes, upto, d);
      if (lane >= d) upto += other;
    }
    double sum = before + (upto - mine);
    const uint32_t some = __ballot_sync(kAllLanes, mine > 0.0);
    const uint32_t over = __ballot_sync(kAllLanes, mine > 0.0 && goal.Reached(sum + mine));
    if (some == 0) return Crossing();
    const int chosen = over ? __ffs(over) - 1 : 31 - __clz(some);
    if (run > kRun) {
      before = __shfl_sync(kAllLanes, sum, chosen);
      n = min(run, n - chosen * run);
      first += chosen * run;
      continue;
    }
    Crossing out;
    bool reached = false;
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      if (a[j] <= 0.0 || reached) continue;
      out = {sum, a[j], begin + j};
      sum += a[j];
      reached = goal.Reached(sum);
    }
    out.before = __shfl_sync(kAllLanes, out.before, chosen);
    out.amount = __shfl_sync(kAllLanes, out.amount, chosen);
    out.index = __shfl_sync(kAllLanes, static_cast<int>(out.index), chosen);
    return out;
  }
}

// The block where a running sum over totals [size] reaches the goal and the sum before it; else the
// last with a total > 0 (index −1: none has).
__device__ inline Crossing FindBlock(const double* totals, int size, double before, Goal goal) {
  Crossing out;
#pragma unroll 1
  for (int r = 0; r < size; ++r) {
    if (totals[r] <= 0.0) continue;
    out = {before, totals[r], r};
    before += totals[r];
    if (goal.Reached(before)) break;
  }
  return out;
}

// The id at which the running sum of amount(value, id), by id, reaches goal_of(total); −1 when all
// amounts are 0.
template <typename Amount, typename GoalOf>
__device__ int FindById(RowGroup& group, const Chunk& chunk, Amount amount, GoalOf goal_of) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (int tile = warp; tile < chunk.tiles; tile += kWarps) {
    double sum = 0.0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = tile * kTile + half * 128 + lane * 4;
      const float4 v = *reinterpret_cast<const float4*>(chunk.values + i);
      const int id = chunk.first + i;
      sum += (amount(v.x, id) + amount(v.y, id + 1)) + (amount(v.z, id + 2) + amount(v.w, id + 3));
    }
    sum = WarpReduce(sum, 32, Add());
    if (lane == 0) chunk.tile_sums[tile] = sum;
  }
  __syncthreads();
  double mine = 0.0;
#pragma unroll 1
  for (int tile = threadIdx.x; tile < chunk.tiles; tile += kThreads) mine += chunk.tile_sums[tile];
  const double* totals = group.Gather(mine, Add());
  double total = 0.0;
#pragma unroll 1
  for (int r = 0; r < group.size(); ++r) total += totals[r];
  const Goal goal = goal_of(total);
  const Crossing block = FindBlock(totals, group.size(), 0.0, goal);
  if (block.index < 0) return -1;
  const int owner = static_cast<int>(block.index);
  Crossing found;
  if (group.rank() == owner && warp == 0) {
    const Crossing tile =
        WarpFind(chunk.tiles, block.before, goal, [&](int t) { return chunk.tile_sums[t]; });
    const int base = static_cast<int>(tile.index) * kTile;
    found = WarpFind(kTile, tile.before, goal, [&](int i) {
      return static_cast<double>(amount(chunk.values[base + i], chunk.first + base + i));
    });
    found.index += chunk.first + base;
  }
  return static_cast<int>(group.Publish(owner, found).index);
}

}  // namespace rootstock::kernels::cuda
