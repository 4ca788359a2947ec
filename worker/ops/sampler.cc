#include "worker/ops/sampler.h"

#include "kernels/sampler/philox.h"

namespace rootstock {

void TokenCounts::Add(int32_t token, bool output) {
  const auto [it, added] = index_.try_emplace(token, counts_.size());
  if (added) counts_.push_back({token, 0, false});
  kernels::TokenCount& count = counts_[it->second];
  if (output) {
    ++count.outputs;
  } else {
    count.in_prompt = true;
  }
}

bool NeedsCounts(const SamplingParams& params) {
  return params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f ||
         params.repetition_penalty != 1.0f;
}

int32_t Sampler::Sample(std::span<const float> logits, const SampleRequest& request) {
  const SamplingParams& from = *request.params;
  kernels::SampleParams to{.temperature = from.temperature,
                           .top_p = from.top_p,
                           .top_k = from.top_k,
                           .min_p = from.min_p,
                           .presence_penalty = from.presence_penalty,
                           .frequency_penalty = from.frequency_penalty,
                           .repetition_penalty = from.repetition_penalty,
                           .bias = from.logit_bias};
  if (request.counts != nullptr) to.counts = request.counts->all();
  if (request.num_outputs < from.min_tokens) to.banned = from.banned_until_min;
  if (from.temperature > 0.0f) {
    to.uniform = kernels::Uniform(request.seed, request.sample_index, request.position,
                                  kernels::DrawPurpose::kToken);
  }
  return kernels::SampleToken(logits, to, scratch_);
}

TokenLogprob Sampler::Logprob(std::span<const float> logits, int32_t token, int num_top) {
  const double lse = kernels::LogSumExp(logits);
  TokenLogprob out{
      token, static_cast<float>(logits[token] - lse), kernels::RankOf(logits, token), {}};
  if (num_top <= 0) return out;
  kernels::TopTokens(logits, num_top, scratch_.order);
  for (const int32_t t : scratch_.order) {
    out.top.emplace_back(t, static_cast<float>(logits[t] - lse));
  }
  return out;
}

}  // namespace rootstock
