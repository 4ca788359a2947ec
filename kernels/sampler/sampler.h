// The sampler's plain CPU reference: one row of logits to one token.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace rootstock::kernels {

// How often a token came; only tokens that came at all.
struct TokenCount {
  int32_t token = 0;
  uint32_t outputs = 0;  // times among the output tokens
  bool in_prompt = false;
};

struct SampleParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;        // 1: all
  int32_t top_k = 0;         // ≤ 0: all
  float min_p = 0.0f;        // 0: all
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::span<const TokenCount> counts;               // each token once
  std::span<const std::pair<int32_t, float>> bias;  // (token, added to its logit)
  std::span<const int32_t> banned;                  // can't be sampled
  double uniform = 0.0;                             // in [0, 1), unused when greedy
};

// Buffers kept from call to call.
struct SampleScratch {
  std::vector<float> values;   // [vocab]
  std::vector<int32_t> order;  // token ids
};

// In the order penalties, bias, bans, temperature, top-k, top-p, min-p:
//   repetition: l > 0 ? l / p : l · p for tokens of prompt or output; l −= frequency · outputs;
//   l −= presence where outputs > 0; l += bias; l = −∞ where banned.
// temperature 0: the highest l, the lower id of equals. Else with w = exp((l − max l) /
// temperature):
//   top-k keeps l ≥ the k-th highest; top-p the shortest run of descending w (lower id first) that
//   holds ≥ top_p of what top-k left; min-p those with w ≥ min_p · max w.
// The token is where the running sum of kept w, by token id, exceeds uniform · Σ w.
// Logits [vocab], unchanged. −1 when no token can be chosen: a logit is not finite, or all are
// banned.
int32_t SampleToken(std::span<const float> logits, const SampleParams& params,
                    SampleScratch& scratch);

// Neither NaN nor infinity.
bool AllFinite(std::span<const float> logits);
// ln Σ exp(l), in double; NaN when a logit is not finite.
double LogSumExp(std::span<const float> logits);
// 1 + the number of tokens with a higher logit.
int32_t RankOf(std::span<const float> logits, int32_t token);
// The n tokens of highest logit, descending, the lower id first of equals.
void TopTokens(std::span<const float> logits, int n, std::vector<int32_t>& out);

}  // namespace rootstock::kernels
