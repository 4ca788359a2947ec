#include "kernels/sampler/sampler_cuda_testing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/sampler/philox.h"

namespace rootstock::kernels::cuda {
namespace {

uint16_t Bf16Bits(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  if (std::isnan(v)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

SampleParams ParamsOf(const RowCase& c) {
  const SampleRow& r = c.row;
  SampleParams p{.temperature = r.temperature,
                 .top_p = r.top_p,
                 .top_k = r.top_k,
                 .min_p = r.min_p,
                 .presence_penalty = r.presence_penalty,
                 .frequency_penalty = r.frequency_penalty,
                 .repetition_penalty = r.repetition_penalty,
                 .counts = c.counts,
                 .bias = c.bias,
                 .banned = c.banned};
  p.uniform = Uniform(r.seed, r.sample_index, r.position, DrawPurpose::kToken);
  return p;
}

// The launch's memory for a batch. *One thread.*
struct Uploaded {
  std::vector<SampleRow> rows;
  std::vector<int32_t> adjust_ids;
  std::vector<float> adjust_values;
  std::vector<uint32_t> counts;
  std::vector<float> logits;

  Uploaded(const BatchShape& shape, const std::vector<RowCase>& cases) {
    int32_t num_counts = 0;
    for (const RowCase& c : cases) {
      SampleRow row = c.row;
      row.slot = static_cast<int32_t>(rows.size());
      row.adjust_begin = static_cast<int32_t>(adjust_ids.size());
      for (const auto& [id, value] : c.bias) Adjust(id, value);
      for (const int32_t id : c.banned) Adjust(id, -INFINITY);
      row.adjust_end = static_cast<int32_t>(adjust_ids.size());
      if (!c.counts.empty()) {
        row.counts = num_counts++;
        counts.resize(static_cast<size_t>(num_counts) * shape.vocab);
        uint32_t* const of_row = &counts[static_cast<size_t>(row.counts) * shape.vocab];
        for (const TokenCount& t : c.counts) {
          of_row[t.token] = t.outputs | (t.in_prompt ? kInPrompt : 0);
        }
      }
      rows.push_back(row);
      logits.insert(logits.end(), c.logits.begin(), c.logits.end());
    }
    rows.resize(cases.size() + shape.pads);
    logits.resize(rows.size() * shape.vocab, 1.0f);
  }

  void Adjust(int32_t id, float value) {
    adjust_ids.push_back(id);
    adjust_values.push_back(value);
  }
};

template <typename T>
std::vector<T> Poisoned(size_t n) {
  return std::vector<T>(n, std::bit_cast<T>(kPoison));
}

// Weights as the reference's, in double, 0 where top-k, top-p or min-p cut. `slack`: how much of
// their sum top-p's last token may carry when the sum before or after it lies near the goal.
std::vector<double> ReferenceWeights(const SampleParams& p, const std::vector<float>& l,
                                     double* slack) {
  const float highest = *std::max_element(l.begin(), l.end());
  float lowest = -INFINITY;
  if (p.top_k > 0 && p.top_k < static_cast<int>(l.size())) {
    std::vector<float> sorted = l;
    std::nth_element(sorted.begin(), sorted.begin() + p.top_k - 1, sorted.end(), std::greater<>());
    lowest = sorted[p.top_k - 1];
  }
  std::vector<double> w(l.size());
  for (size_t i = 0; i < l.size(); ++i) {
    if (l[i] >= lowest) w[i] = std::exp(static_cast<double>((l[i] - highest) / p.temperature));
  }
  *slack = 0.0;
  if (p.top_p < 1.0f) {
    std::vector<int32_t> order(l.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return w[a] > w[b]; });
    const double total = std::accumulate(w.begin(), w.end(), 0.0);
    const double goal = static_cast<double>(p.top_p) * total;
    double sum = 0.0;
    size_t n = 0;
    do {
      sum += w[order[n++]];
    } while (n < order.size() && sum < goal);
    const double last = w[order[n - 1]];
    const double next = n < order.size() ? w[order[n]] : 0.0;
    const bool near = std::abs(sum - goal) < kDrawBound * total ||
                      std::abs(sum - last - goal) < kDrawBound * total ||
                      (next != last && last - next < kDrawBound * last);
    if (near) *slack = 2.0 * last;
    for (; n < order.size(); ++n) w[order[n]] = 0.0;
  }
  for (double& x : w) {
    if (std::abs(x - p.min_p) < kDrawBound * p.min_p) *slack += x;
    if (x < p.min_p) x = 0.0;
  }
  return w;
}

// Penalties, bias and bans by the reference, seen through greedy choices alone: this repeats them.
std::vector<float> Adjusted(const SampleParams& p, std::vector<float> l) {
  for (const TokenCount& c : p.counts) {
    float& x = l[c.token];
    if (c.outputs > 0 || c.in_prompt) {
      x = x > 0 ? x / p.repetition_penalty : x * p.repetition_penalty;
    }
    x -= p.frequency_penalty * static_cast<float>(c.outputs);
    if (c.outputs > 0) x -= p.presence_penalty;
  }
  const auto inside = [&](int32_t id) { return id >= 0 && id < static_cast<int32_t>(l.size()); };
  for (const auto& [id, value] : p.bias) {
    if (inside(id)) l[id] += value;
  }
  for (const int32_t id : p.banned) {
    if (inside(id)) l[id] = -INFINITY;
  }
  return l;
}

float RoundTo(Type type, float v) {
  if (type == Type::kF32) return v;
  return std::bit_cast<float>(static_cast<uint32_t>(Bf16Bits(v)) << 16);
}

std::vector<float> Logits(Look look, Type type, int vocab, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> l(vocab);
  for (float& x : l) {
    const float z = normal(random);
    switch (look) {
      case Look::kFlat:
        x = 0.3f * z;
        break;
      case Look::kSpread:
        x = 3.0f * z - 5.0f;
        break;
      case Look::kPeaked:
        x = 2.0f * z - (z < 3.0f ? 12.0f : 0.0f);
        break;
      case Look::kConstant:
        x = -1.25f;
        break;
      case Look::kFewValues:
        x = std::round(z);
        break;
    }
    x = RoundTo(type, x);
  }
  return l;
}

}  // namespace

std::vector<uint16_t> ToBf16(const std::vector<float>& values) {
  std::vector<uint16_t> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), Bf16Bits);
  return out;
}

RowCase MakeCase(Look look, Type type, int vocab, uint32_t number, std::mt19937& random) {
  RowCase c;
  c.logits = Logits(look, type, vocab, random);
  c.row.seed = 0x123456789abcull + number;
  c.row.sample_index = number % 3;
  c.row.position = 17 + number;
  return c;
}

Outputs RunBatch(const BatchShape& shape, std::vector<RowCase> cases) {
  const Uploaded up(shape, cases);
  const size_t n = up.rows.size();
  const DeviceArray<float> f32(shape.type == Type::kF32 ? up.logits : std::vector<float>());
  const DeviceArray<uint16_t> bf16(shape.type == Type::kF32 ? std::vector<uint16_t>()
                                                            : ToBf16(up.logits));
  const DeviceArray<int32_t> live(std::vector<int32_t>{static_cast<int32_t>(cases.size())});
  const DeviceArray<SampleRow> rows(up.rows);
  const DeviceArray<int32_t> ids(up.adjust_ids);
  const DeviceArray<float> values(up.adjust_values);
  const DeviceArray<uint32_t> counts(up.counts);
  const DeviceArray<std::byte> scratch(SampleScratchBytes(static_cast<int>(n), shape.vocab));
  const DeviceArray<int32_t> last(Poisoned<int32_t>(n)), tokens(Poisoned<int32_t>(n)),
      ranks(Poisoned<int32_t>(n)), top_ids(Poisoned<int32_t>(n * shape.max_top));
  const DeviceArray<float> logprobs(Poisoned<float>(n)),
      top_logprobs(Poisoned<float>(n * shape.max_top));
  const SampleStep step{
      .logits = shape.type == Type::kF32 ? static_cast<const void*>(f32.get()) : bf16.get(),
      .logits_type = shape.type,
      .vocab = shape.vocab,
      .num_rows = static_cast<int>(n),
      .live_rows = live.get(),
      .rows = rows.get(),
      .adjust_ids = ids.get(),
      .adjust_values = values.get(),
      .counts = counts.get(),
      .greedy_only = shape.greedy_only,
      .max_top = shape.max_top,
      .scratch = scratch.get(),
      .last_tokens = last.get(),
      .tokens = tokens.get(),
      .logprobs = logprobs.get(),
      .ranks = ranks.get(),
      .top_ids = top_ids.get(),
      .top_logprobs = top_logprobs.get()};
  Sample(step, nullptr);
  Check(cudaGetLastError(), "launch");
  Check(cudaDeviceSynchronize(), "sample");
  return {.tokens = tokens.Host(),
          .ranks = ranks.Host(),
          .top_ids = top_ids.Host(),
          .last_tokens = last.Host(),
          .logprobs = logprobs.Host(),
          .top_logprobs = top_logprobs.Host(),
          .counts = counts.Host()};
}

Verdict Judge(const RowCase& c, int32_t token) {
  const SampleParams p = ParamsOf(c);
  SampleScratch scratch;
  Verdict v{.expected = SampleToken(c.logits, p, scratch)};
  v.equal = v.expected == token;
  if (v.equal || p.temperature <= 0.0f || v.expected < 0 || token < 0) return v;
  double slack = 0.0;
  const std::vector<double> w = ReferenceWeights(p, Adjusted(p, c.logits), &slack);
  const double total = std::accumulate(w.begin(), w.end(), 0.0);
  const double before = std::accumulate(w.begin(), w.begin() + token, 0.0);
  const double bound = kDrawBound * total + slack;
  const double target = p.uniform * total;
  v.justified = (w[token] > 0.0 || slack > 0.0) && target >= before - bound &&
                target <= before + w[token] + bound;
  v.why = "token " + std::to_string(token) + " instead of " + std::to_string(v.expected) +
          ", target " + std::to_string(target) + " in [" + std::to_string(before) + ", " +
          std::to_string(before + w[token]) + "] of " + std::to_string(total) + ", slack " +
          std::to_string(slack);
  return v;
}

}  // namespace rootstock::kernels::cuda
