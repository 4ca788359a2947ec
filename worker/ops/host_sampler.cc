#include "worker/ops/host_sampler.h"

#include <algorithm>
#include <utility>

#include "kernels/sampler/philox.h"

namespace rootstock {

bool NeedsCounts(const SamplingParams& params) {
  return params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f ||
         params.repetition_penalty != 1.0f;
}

TokenLogprob LogprobOf(std::span<const float> logits, int32_t token, int num_top) {
  const double lse = kernels::LogSumExp(logits);
  TokenLogprob out{
      token, static_cast<float>(logits[token] - lse), kernels::RankOf(logits, token), {}};
  if (num_top <= 0) return out;
  std::vector<int32_t> order;
  kernels::TopTokens(logits, num_top, order);
  for (const int32_t t : order) out.top.emplace_back(t, static_cast<float>(logits[t] - lse));
  return out;
}

void HostSampler::Counts::Add(int32_t token, bool output) {
  const auto [it, added] = index_.try_emplace(token, counts_.size());
  if (added) counts_.push_back({token, 0, false});
  kernels::TokenCount& count = counts_[it->second];
  if (output) {
    ++count.outputs;
  } else {
    count.in_prompt = true;
  }
}

absl::Status HostSampler::Prepare(const SamplerLimits& limits) {
  limits_ = limits;
  last_tokens_.assign(limits.num_slots, 0);
  chosen_.assign(limits.max_orders, -1);
  counts_.clear();
  counts_.resize(limits.num_slots);
  done_.clear();
  return absl::OkStatus();
}

void HostSampler::Begin(uint32_t slot, bool counts) {
  counts_[slot] = counts ? std::make_unique<Counts>() : nullptr;
}

void HostSampler::Count(uint32_t slot, std::span<const int32_t> tokens, bool outputs) {
  if (counts_[slot] == nullptr) return;
  for (const int32_t token : tokens) counts_[slot]->Add(token, outputs);
}

absl::Status HostSampler::Sample(const float* logits, std::span<const SampleOrder> orders) {
  std::vector<SampleOutcome>& outcomes = done_.emplace_back();
  const size_t vocab = limits_.vocab;
  for (size_t i = 0; i < orders.size(); ++i) {
    outcomes.push_back(Run({logits + i * vocab, vocab}, orders[i]));
    chosen_[i] = outcomes.back().token;
  }
  return absl::OkStatus();
}

// The step ahead goes on from a stand-in until the coordinator hears of it.
absl::Status HostSampler::Follow(std::span<const SampleOrder> orders) {
  for (size_t i = 0; i < orders.size(); ++i) {
    if (orders[i].samples()) last_tokens_[orders[i].slot] = std::max(chosen_[i], 0);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const SampleOutcome>> HostSampler::Collect() {
  collected_ = std::move(done_.front());
  done_.pop_front();
  return collected_;
}

SampleOutcome HostSampler::Run(std::span<const float> logits, const SampleOrder& order) {
  SampleOutcome out;
  out.nonfinite = !kernels::AllFinite(logits);
  if (order.keep_logits) {
    out.logits.assign(logits.begin(), logits.end());
    return out;
  }
  out.token = order.given >= 0 ? order.given : Draw(logits, order);
  if (order.given < 0) {
    out.nonfinite |= out.token < 0;
    last_tokens_[order.slot] = std::max(out.token, 0);
    if (out.token >= 0) Count(order.slot, {&out.token, 1}, /*outputs=*/true);
  }
  if (order.num_top >= 0 && out.token >= 0) {
    out.logprob = LogprobOf(logits, out.token, order.num_top);
  }
  return out;
}

int32_t HostSampler::Draw(std::span<const float> logits, const SampleOrder& order) {
  const SamplingParams& from = *order.params;
  kernels::SampleParams to{.temperature = from.temperature,
                           .top_p = from.top_p,
                           .top_k = from.top_k,
                           .min_p = from.min_p,
                           .presence_penalty = from.presence_penalty,
                           .frequency_penalty = from.frequency_penalty,
                           .repetition_penalty = from.repetition_penalty,
                           .bias = from.logit_bias};
  if (counts_[order.slot] != nullptr) to.counts = counts_[order.slot]->all();
  if (order.num_outputs < from.min_tokens) to.banned = from.banned_until_min;
  if (from.temperature > 0.0f) {
    to.uniform = kernels::Uniform(order.seed, order.sample_index, order.position,
                                  kernels::DrawPurpose::kToken);
  }
  return kernels::SampleToken(logits, to, scratch_);
}

}  // namespace rootstock
