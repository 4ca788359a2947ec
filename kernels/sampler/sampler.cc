#include "kernels/sampler/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace rootstock::kernels {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool Inside(std::span<const float> values, int32_t token) {
  return token >= 0 && static_cast<size_t>(token) < values.size();
}

void ApplyPenaltiesAndBias(const SampleParams& p, std::span<float> values) {
  for (const TokenCount& c : p.counts) {
    if (!Inside(values, c.token)) continue;
    float& l = values[c.token];
    if (c.outputs > 0 || c.in_prompt) {
      l = l > 0 ? l / p.repetition_penalty : l * p.repetition_penalty;
    }
    l -= p.frequency_penalty * static_cast<float>(c.outputs);
    if (c.outputs > 0) l -= p.presence_penalty;
  }
  for (const auto& [token, bias] : p.bias) {
    if (Inside(values, token)) values[token] += bias;
  }
  for (const int32_t token : p.banned) {
    if (Inside(values, token)) values[token] = kNever;
  }
}

// values [vocab]: logits become weights, 0 for what top-k cut.
void ToWeights(const SampleParams& p, float highest, std::span<float> values,
               SampleScratch& scratch) {
  float lowest_kept = kNever;
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < values.size()) {
    std::vector<int32_t>& order = scratch.order;
    TopTokens(values, p.top_k, order);
    lowest_kept = values[order.back()];
  }
  for (float& l : values) {
    l = l >= lowest_kept ? std::exp((l - highest) / p.temperature) : 0.0f;
  }
}

// Zeroes what lies outside the shortest run that holds top_p of the weight.
void CutTopP(double top_p, std::span<float> weights, SampleScratch& scratch) {
  double total = 0.0;
  std::vector<int32_t>& heap = scratch.order;
  heap.clear();
  for (size_t i = 0; i < weights.size(); ++i) {
    total += weights[i];
    if (weights[i] > 0.0f) heap.push_back(static_cast<int32_t>(i));
  }
  const auto less_likely = [&](int32_t a, int32_t b) {
    return weights[a] < weights[b] || (weights[a] == weights[b] && a > b);
  };
  // Most mass lies in few tokens: a heap gives those without sorting the rest.
  std::make_heap(heap.begin(), heap.end(), less_likely);
  auto end = heap.end();
  double kept = 0.0;
  do {
    std::pop_heap(heap.begin(), end, less_likely);
    kept += weights[*--end];
  } while (end != heap.begin() && kept < top_p * total);
  for (auto it = heap.begin(); it != end; ++it) weights[*it] = 0.0f;
}

int32_t Draw(double uniform, std::span<const float> weights) {
  double total = 0.0;
  for (const float w : weights) total += w;
  const double target = uniform * total;
  double sum = 0.0;
  int32_t last = -1;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0.0f) continue;
    sum += weights[i];
    last = static_cast<int32_t>(i);
    if (sum > target) return last;
  }
  return last;
}

}  // namespace

bool AllFinite(std::span<const float> logits) {
  // Infinities and NaNs have the highest exponent; as integers the loop vectorises.
  uint32_t worst = 0;
  for (const float l : logits) worst = std::max(worst, std::bit_cast<uint32_t>(l) & 0x7fffffffu);
  return worst < 0x7f800000u;
}

int32_t SampleToken(std::span<const float> logits, const SampleParams& params,
                    SampleScratch& scratch) {
  if (logits.empty() || !AllFinite(logits)) return -1;
  scratch.values.assign(logits.begin(), logits.end());
  const std::span<float> values(scratch.values);
  ApplyPenaltiesAndBias(params, values);
  const auto best = std::max_element(values.begin(), values.end());
  const float highest = *best;
  if (!std::isfinite(highest)) return -1;
  if (params.temperature <= 0.0f) return static_cast<int32_t>(best - values.begin());
  ToWeights(params, highest, values, scratch);
  if (params.top_p < 1.0f) CutTopP(params.top_p, values, scratch);
  if (params.min_p > 0.0f) {
    // The highest weight is exp(0) = 1.
    for (float& w : values) {
      if (w < params.min_p) w = 0.0f;
    }
  }
  return Draw(params.uniform, values);
}

double LogSumExp(std::span<const float> logits) {
  if (logits.empty() || !AllFinite(logits)) return std::numeric_limits<double>::quiet_NaN();
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l) - highest);
  return highest + std::log(sum);
}

int32_t RankOf(std::span<const float> logits, int32_t token) {
  const float mine = logits[token];
  return 1 + static_cast<int32_t>(
                 std::count_if(logits.begin(), logits.end(), [mine](float l) { return l > mine; }));
}

void TopTokens(std::span<const float> logits, int n, std::vector<int32_t>& out) {
  const auto likelier = [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  // A heap whose front is the least likely of the n best so far.
  out.clear();
  for (size_t i = 0; i < logits.size() && n > 0; ++i) {
    const auto token = static_cast<int32_t>(i);
    if (out.size() < static_cast<size_t>(n)) {
      out.push_back(token);
      std::push_heap(out.begin(), out.end(), likelier);
    } else if (likelier(token, out.front())) {
      std::pop_heap(out.begin(), out.end(), likelier);
      out.back() = token;
      std::push_heap(out.begin(), out.end(), likelier);
    }
  }
  std::sort_heap(out.begin(), out.end(), likelier);
}

}  // namespace rootstock::kernels
