// Searches in one row of values without sorting it: the k-th highest by digits of its bits, and the
// token at which a running sum by id crosses a goal.
#pragma once

#include <climits>

#include "kernels/sampler/row_group.cuh"

namespace rootstock::kernels::cuda {

// A block's part of the row.
struct Chunk {
  float* values = nullptr;      // [tiles · kTile]; beyond `count`: −∞ as logits, 0 as weights
  double* tile_sums = nullptr;  // [tiles] shared memory
  int tiles = 0;
  int first = 0;  // id of values[0]
  int count = 0;  // of the vocabulary
};

// What a cut keeps: values whose key is above `key`, and of those equal to it the ids ≤ last_id.
struct Cut {
  uint32_t key = 0;
  int last_id = INT_MAX;
  __device__ bool Keeps(uint32_t k, int id) const { return k > key || (k == key && id <= last_id); }
};

// Unsigned order = the floats' order.
__device__ inline uint32_t OrderedKey(float v) {
  const uint32_t bits = __float_as_uint(v);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
__device__ inline float FromOrderedKey(uint32_t key) {
  return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}

// f(float4& values, int i): four values at chunk.values + i; of one thread in ascending order.
template <typename F>
__device__ void ForEachFour(const Chunk& chunk, F f) {
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

// Of one warp: the first i of [0, n) where before + Σ amount(0 … i) reaches the goal; where
// rounding lets none, the last with amount > 0.
template <typename Amount>
__device__ Crossing WarpFind(int n, double before, Goal goal, Amount amount) {
  const int lane = threadIdx.x % 32;
  const int each = (n + 31) / 32;
  const int begin = min(lane * each, n), end = min(begin + each, n);
  double mine = 0.0;
  for (int i = begin; i < end; ++i) mine += amount(i);
  double upto = mine;
  for (int d = 1; d < 32; d *= 2) {
    const double other = __shfl_up_sync(kAllLanes, upto, d);
    if (lane >= d) upto += other;
  }
  const double exclusive = __shfl_up_sync(kAllLanes, upto, 1);
  const uint32_t some = __ballot_sync(kAllLanes, mine > 0.0);
  const uint32_t over = __ballot_sync(kAllLanes, mine > 0.0 && goal.Reached(before + upto));
  const int chosen = over ? __ffs(over) - 1 : 31 - __clz(some);
  Crossing out;
  if (lane == chosen) {
    double sum = before + (lane == 0 ? 0.0 : exclusive);
    for (int i = begin; i < end; ++i) {
      const double a = amount(i);
      if (a <= 0.0) continue;
      out = {sum, a, i};
      sum += a;
      if (goal.Reached(sum)) break;
    }
  }
  const int from = max(chosen, 0);
  out.before = __shfl_sync(kAllLanes, out.before, from);
  out.amount = __shfl_sync(kAllLanes, out.amount, from);
  out.index = __shfl_sync(kAllLanes, out.index, from);
  return out;
}

// The block where a running sum over totals [size] reaches the goal and the sum before it; else the
// last with a total > 0 (index −1: none has).
__device__ inline Crossing FindBlock(const double* totals, int size, double before, Goal goal) {
  Crossing out;
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
  for (int tile = threadIdx.x; tile < chunk.tiles; tile += kThreads) mine += chunk.tile_sums[tile];
  const double* totals = group.Gather(mine, Add());
  double total = 0.0;
  for (int r = 0; r < group.size(); ++r) total += totals[r];
  const Goal goal = goal_of(total);
  const Crossing block = FindBlock(totals, group.size(), 0.0, goal);
  if (block.index < 0) return -1;
  Crossing found;
  if (group.rank() == block.index && warp == 0) {
    const Crossing tile =
        WarpFind(chunk.tiles, block.before, goal, [&](int t) { return chunk.tile_sums[t]; });
    const int base = tile.index * kTile;
    found = WarpFind(kTile, tile.before, goal, [&](int i) {
      return static_cast<double>(amount(chunk.values[base + i], chunk.first + base + i));
    });
    found.index += chunk.first + base;
  }
  return group.Publish(block.index, found).index;
}

}  // namespace rootstock::kernels::cuda
