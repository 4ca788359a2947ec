// One launch for a step's rows: a group of blocks keeps a row in its shared memory.
#include <cfloat>

#include "kernels/sampler/greedy_cuda.h"
#include "kernels/sampler/philox.h"
#include "kernels/sampler/row_load.cuh"
#include "kernels/sampler/row_logprobs.cuh"
#include "kernels/sampler/row_split.h"

namespace rootstock::kernels::cuda {
namespace {

// exp(below / temperature), below ≤ 0; the quotient is rounded once, as a division's.
struct Weight {
  float temperature;
  float inverse;
  __device__ explicit Weight(float t) : temperature(t), inverse(fminf(1.0f / t, FLT_MAX)) {}
  __device__ float operator()(float below) const {
    const float q = fmaxf(below * inverse, -200.0f);  // finite, and exp of it 0
    return expf(fmaf(fmaf(-q, temperature, below), inverse, q));
  }
};

// Logits become weights, 0 for those below `lowest`. Returns this thread's sum.
__device__ double Weigh(const Chunk& chunk, float highest, float temperature, float lowest) {
  const Weight weight(temperature);
  double sum = 0.0;
  ForEachFour(chunk, [&](float4& v, int) {
    if (fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)) < lowest) {
      v = {0.0f, 0.0f, 0.0f, 0.0f};
      return;
    }
    // −∞ becomes 0 without a branch, so that the four run side by side.
    const auto one = [&](float l) { return weight((l >= lowest ? l : kNever) - highest); };
    v = {one(v.x), one(v.y), one(v.z), one(v.w)};
    sum += (v.x + v.y) + (v.z + v.w);
  });
  return sum;
}

// The token where the first block has all that is left in `list` [n]: logits of which top-k keeps
// those with fewer than k above them, or (k = 0) weights.
__device__ int FinishFew(RowGroup& group, const Chunk& chunk, uint64_t* list, int n, int k,
                         float highest, double total) {
  const SampleRow& row = chunk.shared->row;
  Crossing found;
  if (group.rank() == 0) {
    const int i = threadIdx.x;
    const uint64_t mine = i < n ? list[i] : 0;
    float weight = EntryValue(mine);
    if (k > 0) {
      int higher = 0;
#pragma unroll 2
      for (int j = 0; j < n && i < n; ++j) higher += (list[j] >> 32) > (mine >> 32);
      weight = higher < k ? Weight(row.temperature)(weight - highest) : 0.0f;
    }
    auto* masses = reinterpret_cast<uint64_t*>(chunk.shared->histogram);
    found.index =
        DrawOfFew(list, masses, &chunk.shared->count, n, EntryId(mine), i < n ? weight : 0.0f,
                  {row.top_p, row.min_p, total, chunk.shared->uniform});
  }
  return static_cast<int>(group.Publish(0, found).index);
}

// chunk.values: logits, adjusted; not greedy. The token.
__device__ int Draw(RowGroup& group, const Chunk& chunk, const Highest& highest, int vocab) {
  const SampleRow& row = chunk.shared->row;
  auto* list = reinterpret_cast<uint64_t*>(chunk.shared->received);
  static_assert(sizeof(uint64_t) * kFew <= sizeof(RowShared::received));
  int n = 0;
  const auto try_few = [&](Cut cut) {
    n = GatherKept(group, chunk, cut, list);
    return n <= kFew;
  };
  float lowest = kNever;
  if (row.top_k > 0 && row.top_k < vocab) {
    const Selection s =
        Select<ByCount>(group, chunk, highest.key(), highest.floor, row.top_k, true, try_few);
    if (s.few) return FinishFew(group, chunk, list, n, row.top_k, highest.value(), -1.0);
    lowest = s.cut.above;
  }
  const double mass = Weigh(chunk, highest.value(), row.temperature, lowest);
  Cut cut{.above = 0.0f};
  if (row.top_p < 1.0f) {
    const double total = group.Reduce(mass, Add());
    const double goal = fmax(row.top_p * total, DBL_MIN);
    // Even together, weights below this do not make up what top-p cuts.
    const double least = 0.99 * (total - goal) / vocab;
    const uint32_t floor = max(__float_as_uint(fmaxf(static_cast<float>(least), 0.0f)), 1u);
    const auto count_and_try = [&](Cut c) {
      return CountKept(group, chunk, c) <= kFew && try_few(c);
    };
    const Selection s =
        Select<ByMass>(group, chunk, __float_as_uint(1.0f), floor, goal, false, count_and_try);
    if (s.few) return FinishFew(group, chunk, list, n, 0, 0.0f, total);
    cut = s.cut;
  }
  // Of the highest weight, exp(0) = 1.
  if (row.min_p > cut.above) cut = {.above = row.min_p, .last_id = INT_MAX};
  const double uniform = chunk.shared->uniform;
  return FindById(
      group, chunk, [=](float w, int id) { return cut.Keeps(w, id) ? w : 0.0f; },
      [=](double kept) { return Goal{uniform * kept, true}; });
}

// chunk.values: raw logits. The token, −1: none.
__device__ int Choose(RowGroup& group, const SampleStep& step, const Chunk& chunk,
                      ThreadHighest of_thread, bool bad) {
  const SampleRow& row = chunk.shared->row;
  const bool adjusts = row.adjust_begin < row.adjust_end;
  if (row.counts >= 0) {
    ApplyPenalties(row, step.counts + static_cast<size_t>(row.counts) * step.vocab, chunk);
  }
  if (adjusts) {
    ApplyAdjustments(step.adjust_ids + row.adjust_begin, step.adjust_values + row.adjust_begin,
                     row.adjust_end - row.adjust_begin, chunk);
  }
  if (adjusts || row.counts >= 0) of_thread = LookAtAll(chunk);
  const bool greedy = row.temperature <= 0.0f;
  const Highest highest = FindHighest(group, chunk, of_thread, greedy ? 1 : max(row.top_k, 1), bad);
  if (highest.bad != 0 || !isfinite(highest.value())) return -1;
  return greedy ? highest.id() : Draw(group, chunk, highest, step.vocab);
}

__device__ void WriteToken(const SampleRow& from, const SampleStep& step, int row, int token) {
  step.tokens[row] = token;
  if (step.host_tokens != nullptr) step.host_tokens[row] = token;
  if (from.given >= 0) return;
  if (step.last_tokens != nullptr) step.last_tokens[from.slot] = max(token, 0);
  if (from.counts >= 0 && token >= 0) {
    atomicAdd(step.counts + static_cast<size_t>(from.counts) * step.vocab + token, 1u);
  }
}

// grid (group, rows). kSpills: the row is too long for the group's shared memory, its values lie in
// spill [rows, group · tiles · kTile].
template <bool kSpills>
__global__ void __launch_bounds__(kThreads, 3)
    SampleRows(SampleStep step, int tiles, float* spill) {
  extern __shared__ float4 dynamic[];
  __shared__ alignas(16) unsigned char storage[sizeof(RowShared)];
  const int row = blockIdx.y;
  if (IsPad(step, row)) return;
  RowShared& shared = *reinterpret_cast<RowShared*>(storage);
  RowGroup group(&shared.exchange);
  const int length = tiles * kTile;
  Chunk chunk{.shared = &shared, .tiles = tiles, .first = group.rank() * length};
  chunk.count = min(max(step.vocab - chunk.first, 0), length);
  chunk.tile_sums = reinterpret_cast<double*>(dynamic);
  if constexpr (kSpills) {
    chunk.values = spill + (static_cast<size_t>(row) * group.size() + group.rank()) * length;
  } else {
    chunk.values = reinterpret_cast<float*>(dynamic + (tiles + 1) / 2);
  }
  TakeRow(step, row, shared);
  ThreadHighest of_thread;
  const bool bad = LoadChunk(step, row, chunk, &of_thread);
  if (threadIdx.x == kThreads - 32) {  // of a warp with few tiles
    const SampleRow& from = shared.row;
    shared.uniform = Uniform(from.seed, from.sample_index, from.position, DrawPurpose::kToken);
  }
  group.Start();
  const bool wants_logprob = shared.row.num_logprobs >= 0;
  RowLogprobs logprobs;
  logprobs.num_top = min(min(shared.row.num_logprobs, step.max_top), kMaxTopLogprobs);
  int token = shared.row.given;
  bool none = false;
  if (wants_logprob || token >= 0) {
    const Highest raw = FindHighest(group, chunk, of_thread, max(logprobs.num_top, 1), bad);
    none = raw.bad != 0;
    if (wants_logprob && !none) {
      logprobs.log_sum = LogSum(group, chunk, raw.value());
      logprobs.found_top = GatherTop(group, chunk, raw, min(logprobs.num_top, step.vocab));
    }
  }
  if (none) {
    token = -1;
  } else if (token < 0) {
    token = Choose(group, step, chunk, of_thread, bad);
  }
  if (group.rank() == 0 && threadIdx.x == 0) WriteToken(shared.row, step, row, token);
  if (!wants_logprob) return;
  if (token >= 0) {
    logprobs.none = false;
    logprobs.logit = RawLogit(step, row, token);
    logprobs.rank = RankOf(group, step, row, chunk, logprobs.logit);
  }
  if (group.rank() == 0) WriteLogprobs(shared, step, row, logprobs);
}

}  // namespace

size_t SampleScratchBytes(int max_rows, int vocab) {
  const RowSplit split = SplitRow(vocab);
  if (!split.spills) return 0;
  return sizeof(float) * max_rows * split.group * split.tiles * kTile;
}

void Sample(const SampleStep& step, cudaStream_t stream) {
  if (step.num_rows <= 0) return;
  if (step.greedy_only) {
    SampleGreedy(step, stream);
    return;
  }
  const RowSplit split = SplitRow(step.vocab);
  const auto kernel = split.spills ? SampleRows<true> : SampleRows<false>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(split.shared_bytes));
  cudaLaunchAttribute cluster;
  const cudaLaunchConfig_t config =
      RowLaunch(split, step.num_rows, split.shared_bytes, stream, &cluster);
  cudaLaunchKernelEx(&config, kernel, step, split.tiles, static_cast<float*>(step.scratch));
}

}  // namespace rootstock::kernels::cuda
