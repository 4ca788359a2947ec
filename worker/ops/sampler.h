// The sampler on the host: rows of logits to tokens and logprobs.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/plan/plan.h"
#include "kernels/sampler/sampler.h"

namespace rootstock {

// Which tokens a sequence holds, for penalties. *Step thread only.*
class TokenCounts {
 public:
  void Add(int32_t token, bool output);
  std::span<const kernels::TokenCount> all() const { return counts_; }

 private:
  std::vector<kernels::TokenCount> counts_;
  std::unordered_map<int32_t, size_t> index_;
};

// Whether the parameters look at a sequence's earlier tokens.
bool NeedsCounts(const SamplingParams& params);

struct SampleRequest {
  const SamplingParams* params = nullptr;
  const TokenCounts* counts = nullptr;
  uint64_t seed = 0;
  uint32_t sample_index = 0;
  uint32_t position = 0;     // of the token to be sampled
  uint32_t num_outputs = 0;  // before it: min_tokens bans while it is below
};

// Pure but for its scratch memory: the same request and logits give the same token wherever the row
// lies. *Step thread only.*
class Sampler {
 public:
  // logits [vocab]. −1: no token can be chosen, a logit is not finite.
  int32_t Sample(std::span<const float> logits, const SampleRequest& request);
  // Log-softmax of the unmodified logits [vocab] at `token`, its rank, and the `num_top` likeliest.
  TokenLogprob Logprob(std::span<const float> logits, int32_t token, int num_top);

  static bool AllFinite(std::span<const float> logits) { return kernels::AllFinite(logits); }

 private:
  kernels::SampleScratch scratch_;
};

}  // namespace rootstock
