// What the raw logits of a row say: the highest, their log sum, ranks and the top entries.
#pragma once

#include "kernels/sampler/row_load.cuh"
#include "kernels/sampler/row_select.cuh"

namespace rootstock::kernels::cuda {

struct Highest {
  unsigned long long best = 0;  // ordered key, then the lower id
  uint32_t floor = 0;           // no more than the k-th highest
  uint32_t groups = 0;
  uint32_t bad = 0;
  __device__ float value() const { return FromOrderedKey(static_cast<uint32_t>(best >> 32)); }
  __device__ int id() const { return static_cast<int>(~static_cast<uint32_t>(best)); }
};

// The highest value, and a floor under the k-th highest: of groups of threads that have a value,
// as many as k or more, each has one at or above the lowest of the groups' maxima.
__device__ inline Highest FindHighest(RowGroup& group, const Chunk& chunk, int k, bool bad) {
  float best = kNever;
  int id = chunk.first;
  ForEach(chunk, [&](float v, int i) {
    if (v > best) {
      best = v;
      id = i;
    }
  });
  Highest mine;
  mine.best = static_cast<unsigned long long>(OrderedKey(best)) << 32 | ~static_cast<uint32_t>(id);
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

// The n highest raw logits, unsorted, into the first block's shared memory.
__device__ inline void GatherTop(RowGroup& group, const Chunk& chunk, uint32_t floor, int n) {
  if (n <= 0) return;
  const Cut cut = Select<ByCount>(group, chunk, floor, n, false);
  uint32_t* count = Peer(&group.shared().top_count, 0);
  unsigned long long* top = Peer(group.shared().top, 0);
  ForEach(chunk, [&](float v, int id) {
    const uint32_t key = OrderedKey(v);
    if (!cut.Keeps(key, id) || id >= chunk.first + chunk.count) return;
    top[atomicAdd(count, 1u)] =
        static_cast<unsigned long long>(key) << 32 | ~static_cast<uint32_t>(id);
  });
  GroupSync();
}

__device__ inline int RankOf(RowGroup& group, const SampleStep& step, int row, const Chunk& chunk,
                             float logit) {
  int higher = 0;
  ForEachRawFour(step, row, chunk, [&](const float4& v, int) {
    higher += (v.x > logit) + (v.y > logit) + (v.z > logit) + (v.w > logit);
  });
  return 1 + group.Reduce(higher, Add());
}

// By the first block: the row's logprobs, its n top entries sorted; without a token none of them.
__device__ inline void WriteLogprobs(const GroupShared& shared, const SampleStep& step, int row,
                                     int n, bool none, float logit, double log_sum, int rank) {
  if (threadIdx.x == 0) {
    step.logprobs[row] = none ? NAN : static_cast<float>(logit - log_sum);
    step.ranks[row] = none ? 0 : rank;
  }
  const int found = none ? 0 : static_cast<int>(shared.top_count);
  const int i = threadIdx.x;
  if (i >= n) return;
  const size_t out = static_cast<size_t>(row) * step.max_top;
  if (i >= found) {
    step.top_ids[out + i] = -1;
    step.top_logprobs[out + i] = NAN;
    return;
  }
  const unsigned long long mine = shared.top[i];
  int place = 0;
  for (int j = 0; j < found; ++j) place += shared.top[j] > mine;
  step.top_ids[out + place] = static_cast<int32_t>(~static_cast<uint32_t>(mine));
  step.top_logprobs[out + place] =
      static_cast<float>(FromOrderedKey(static_cast<uint32_t>(mine >> 32)) - log_sum);
}

}  // namespace rootstock::kernels::cuda
