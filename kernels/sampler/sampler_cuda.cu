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
    const float q = below * inverse;
    if (!(q > -110.0f)) return 0.0f;  // and of −∞
    return expf(fmaf(fmaf(-q, temperature, below), inverse, q));
  }
};

// Logits become weights, 0 for keys below lowest_kept. Returns their sum.
__device__ double Weigh(RowGroup& group, const Chunk& chunk, float highest, float temperature,
                        uint32_t lowest_kept) {
  const Weight weight(temperature);
  double sum = 0.0;
  ForEachFour(chunk, [&](float4& v, int) {
    const auto one = [&](float l) {
      return OrderedKey(l) >= lowest_kept ? weight(l - highest) : 0.0f;
    };
    v = {one(v.x), one(v.y), one(v.z), one(v.w)};
    sum += (v.x + v.y) + (v.z + v.w);
  });
  return group.Reduce(sum, Add());
}

// chunk.values: raw logits. The token, −1: none.
__device__ int Choose(RowGroup& group, const SampleStep& step, const Chunk& chunk, bool bad) {
  const SampleRow& row = group.shared().row;
  if (row.counts >= 0) {
    ApplyPenalties(row, step.counts + static_cast<size_t>(row.counts) * step.vocab, chunk);
  }
  if (row.adjust_begin < row.adjust_end) {
    ApplyAdjustments(step.adjust_ids + row.adjust_begin, step.adjust_values + row.adjust_begin,
                     row.adjust_end - row.adjust_begin, chunk);
  }
  const bool greedy = row.temperature <= 0.0f;
  const bool cut_count = !greedy && row.top_k > 0 && row.top_k < step.vocab;
  const Highest highest = FindHighest(group, chunk, cut_count ? row.top_k : 1, bad);
  if (highest.bad != 0 || !isfinite(highest.value())) return -1;
  if (greedy) return highest.id();
  Cut top_k;
  if (cut_count) top_k = Select<ByCount>(group, chunk, highest.floor, row.top_k, true);
  const double total = Weigh(group, chunk, highest.value(), row.temperature, top_k.key);
  Cut top_p;
  if (row.top_p < 1.0f) {
    const double goal = fmax(row.top_p * total, DBL_MIN);
    // Even together, weights below this do not make up what top-p cuts.
    const double least = 0.99 * (total - goal) / step.vocab;
    const uint32_t floor = max(__float_as_uint(fmaxf(static_cast<float>(least), 0.0f)), 1u);
    top_p = Select<ByMass>(group, chunk, floor, goal, false);
  }
  const float min_p = row.min_p;  // of the highest weight, exp(0) = 1
  const double uniform = group.shared().uniform;
  return FindById(
      group, chunk,
      [=](float w, int id) { return w >= min_p && top_p.Keeps(__float_as_uint(w), id) ? w : 0.0f; },
      [=](double kept) { return Goal{uniform * kept, true}; });
}

__device__ void WriteToken(const SampleRow& from, const SampleStep& step, int row, int token) {
  step.tokens[row] = token;
  if (from.given >= 0) return;
  if (step.last_tokens != nullptr) step.last_tokens[from.slot] = max(token, 0);
  if (from.counts >= 0 && token >= 0) {
    atomicAdd(step.counts + static_cast<size_t>(from.counts) * step.vocab + token, 1u);
  }
}

// grid (group, rows). spill [rows, group · tiles · kTile]: where a row is too long for the group's
// shared memory.
__global__ void __launch_bounds__(kThreads, 2)
    SampleRows(SampleStep step, int tiles, float* spill) {
  extern __shared__ float4 dynamic[];
  __shared__ alignas(16) unsigned char storage[sizeof(GroupShared)];
  const int row = blockIdx.y;
  if (row >= *step.live_rows) return;
  GroupArrive();  // the others' shared memory may be used once all run
  GroupShared& shared = *reinterpret_cast<GroupShared*>(storage);
  RowGroup group(&shared);
  const int length = tiles * kTile;
  Chunk chunk{.tiles = tiles, .first = group.rank() * length};
  chunk.count = min(max(step.vocab - chunk.first, 0), length);
  chunk.tile_sums = reinterpret_cast<double*>(dynamic);
  chunk.values = spill == nullptr
                     ? reinterpret_cast<float*>(dynamic + (tiles + 1) / 2)
                     : spill + (static_cast<size_t>(row) * group.size() + group.rank()) * length;
  if (threadIdx.x == 0) {
    shared.row = step.rows[row];
    shared.uniform =
        Uniform(shared.row.seed, shared.row.sample_index, shared.row.position, DrawPurpose::kToken);
    shared.top_count = 0;
  }
  const bool bad = LoadChunk(step, row, chunk);
  GroupWait();
  const SampleRow& params = shared.row;
  const bool wants_logprob = params.num_logprobs >= 0;
  const int num_top = min(min(params.num_logprobs, step.max_top), kMaxTopLogprobs);
  double log_sum = 0.0;
  int token = params.given;
  bool none = false;
  if (wants_logprob || token >= 0) {
    const Highest raw = FindHighest(group, chunk, max(num_top, 1), bad);
    none = raw.bad != 0;
    if (wants_logprob && !none) {
      log_sum = LogSum(group, chunk, raw.value());
      GatherTop(group, chunk, raw.floor, min(num_top, step.vocab));
    }
  }
  if (none) {
    token = -1;
  } else if (token < 0) {
    token = Choose(group, step, chunk, bad);
  }
  if (group.rank() == 0 && threadIdx.x == 0) WriteToken(params, step, row, token);
  if (!wants_logprob) return;
  const float logit = token >= 0 ? RawLogit(step, row, token) : 0.0f;
  const int rank = token >= 0 ? RankOf(group, step, row, chunk, logit) : 0;
  if (group.rank() == 0) {
    WriteLogprobs(shared, step, row, num_top, token < 0, logit, log_sum, rank);
  }
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
  cudaFuncSetAttribute(SampleRows, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(split.shared_bytes));
  cudaLaunchAttribute cluster;
  const cudaLaunchConfig_t config =
      RowLaunch(split, step.num_rows, split.shared_bytes, stream, &cluster);
  float* spill = split.spills ? static_cast<float*>(step.scratch) : nullptr;
  cudaLaunchKernelEx(&config, SampleRows, step, split.tiles, spill);
}

}  // namespace rootstock::kernels::cuda
