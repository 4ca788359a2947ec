// What the raw logits of a row say: the highest, their log sum, ranks and the top entries.
#pragma once

#include "kernels/sampler/row_few.cuh"
#include "kernels/sampler/row_load.cuh"

namespace rootstock::kernels::cuda {

struct Highest {
  uint64_t best = 0;   // Entry
  uint32_t floor = 0;  // no more than the k-th highest
  uint32_t groups = 0;
  uint32_t bad = 0;
  __device__ uint32_t key() const { return static_cast<uint32_t>(best >> 32); }
  __device__ float value() const { return EntryValue(best); }
  __device__ int id() const { return EntryId(best); }
};

__device__ inline ThreadHighest LookAtAll(const Chunk& chunk) {
  ThreadHighest highest;
  ForEachFour(chunk, [&](const float4& v, int i) { highest.Look(v, i); });
  return highest;
}

// The highest value, and a floor under the k-th highest: of groups of threads that have a value,
// as many as k or more, each has one at or above the lowest of the groups' maxima.
__device__ inline Highest FindHighest(RowGroup& group, const Chunk& chunk, ThreadHighest of_thread,
                                      int k, bool bad) {
  const auto [best, at] = of_thread;
  const float4 v = *reinterpret_cast<const float4*>(chunk.values + at);
  const int id = chunk.first + at + (v.x == best ? 0 : v.y == best ? 1 : v.z == best ? 2 : 3);
  Highest mine;
  mine.best = Entry(best, id);
  mine.bad = bad;
  uint32_t group_best = OrderedKey(best);
  int width = 1;
  for (; width < 32 && kThreads * group.size() / (2 * width) >= k; width *= 2) {
    group_best = max(group_best, __shfl_xor_sync(kAllLanes, group_best, width));
  }
  const bool some = group_best > OrderedKey(kNever);
  mine.floor = some ? group_best : 0xffffffffu;
  mine.groups = some && threadIdx.x % width == 0;
  Highest all = group.Reduce(mine, [](Highest a, const Highest& b) {
    a.best = max(a.best, b.best);
    a.floor = min(a.floor, b.floor);
    a.groups += b.groups;
    a.bad += b.bad;
    return a;
  });
  if (all.groups < static_cast<uint32_t>(k)) all.floor = 0;
  return all;
}

// ln Σ exp(l).
__device__ inline double LogSum(RowGroup& group, const Chunk& chunk, float highest) {
  double sum = 0.0;
  ForEachFour(chunk, [&](const float4& v, int) {
    sum +=
        (expf(v.x - highest) + expf(v.y - highest)) + (expf(v.z - highest) + expf(v.w - highest));
  });
  return highest + log(group.Reduce(sum, Add()));
}

// The n highest raw logits, perhaps among more, as entries in any order in the first block's
// shared.top. Returns how many there are.
__device__ inline int GatherTop(RowGroup& group, const Chunk& chunk, const Highest& highest,
                                int n) {
  if (n <= 0) return 0;
  int found = 0;
  const auto gather = [&](Cut cut) {
    found = GatherKept(group, chunk, cut, chunk.shared->top);
    return found <= kFew;
  };
  const Selection selection =
      Select<ByCount>(group, chunk, highest.key(), highest.floor, n, false, gather);
  if (!selection.few) gather(selection.cut);
  return found;
}

__device__ inline int RankOf(RowGroup& group, const SampleStep& step, int row, const Chunk& chunk,
                             float logit) {
  int higher = 0;
  ForEachRawFour(step, row, chunk, [&](const float4& v, int) {
    higher += (v.x > logit) + (v.y > logit) + (v.z > logit) + (v.w > logit);
  });
  return 1 + static_cast<int>(group.Reduce(static_cast<double>(higher), Add()));
}

struct RowLogprobs {
  bool none = true;  // there is no token
  float logit = 0.0f;
  double log_sum = 0.0;
  int rank = 0;
  int num_top = 0;    // wanted
  int found_top = 0;  // in shared.top
};

// By the first block's threads.
__device__ inline void WriteLogprobs(const RowShared& shared, const SampleStep& step, int row,
                                     const RowLogprobs& l) {
  if (threadIdx.x == 0) {
    step.logprobs[row] = l.none ? NAN : static_cast<float>(l.logit - l.log_sum);
    step.ranks[row] = l.none ? 0 : l.rank;
  }
  const int found = l.none ? 0 : l.found_top;
  const int i = threadIdx.x;
  const size_t out = static_cast<size_t>(row) * step.max_top;
  if (i >= found) {
    if (i >= l.num_top) return;
    step.top_ids[out + i] = -1;
    step.top_logprobs[out + i] = NAN;
    return;
  }
  const uint64_t mine = shared.top[i];
  int place = 0;
#pragma unroll 2
  for (int j = 0; j < found; ++j) place += shared.top[j] > mine;
  if (place >= l.num_top) return;
  step.top_ids[out + place] = EntryId(mine);
  step.top_logprobs[out + place] = static_cast<float>(EntryValue(mine) - l.log_sum);
}

}  // namespace rootstock::kernels::cuda
