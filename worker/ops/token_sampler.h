// From logits to tokens, on the device that holds the logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"

namespace rootstock {

struct SamplerLimits {
  int num_slots = 0;
  int max_orders = 0;    // of one Sample
  int max_logprobs = 0;  // top entries of an order
  int vocab = 0;
};

// What is asked of one row of logits.
struct SampleOrder {
  const SamplingParams* params = nullptr;  // read during Sample only
  uint32_t slot = 0;
  uint64_t seed = 0;
  uint32_t sample_index = 0;
  uint32_t position = 0;     // of the token to be sampled
  uint32_t num_outputs = 0;  // before it: min_tokens bans while it is below
  int32_t given = -1;        // ≥ 0: nothing is sampled; the logprob of this token is wanted
  int num_top = -1;          // logprob with as many top entries; -1: none
  bool keep_logits = false;  // the row itself is wanted; nothing is sampled or scored

  bool samples() const { return given < 0 && !keep_logits; }
};

struct SampleOutcome {
  int32_t token = -1;         // sampled or given; -1: none can be chosen
  bool nonfinite = false;     // a logit is NaN or infinite
  TokenLogprob logprob;       // if num_top ≥ 0
  std::vector<float> logits;  // if keep_logits: [vocab]
};

// Draws are keyed as PROTOCOL §4 says: the same order and logits give the same token wherever the
// row lies. Sampled tokens are counted for penalties, and become the slot's last token, before a
// step enqueued later runs. Implementations: HostSampler, CudaSampler. *Step thread only.*
class TokenSampler {
 public:
  virtual ~TokenSampler() = default;
  // Forgets everything.
  virtual absl::Status Prepare(const SamplerLimits& limits) = 0;
  // Device memory [num_slots]: what each slot sampled last.
  virtual const int32_t* last_tokens() const = 0;
  // A new sequence takes the slot; `counts`: its penalties look at earlier tokens.
  virtual void Begin(uint32_t slot, bool counts) = 0;
  // Earlier tokens of the slot's sequence that were not sampled here; ignored unless it counts.
  virtual void Count(uint32_t slot, std::span<const int32_t> tokens, bool outputs) = 0;
  // Device memory [max_orders]: the tokens that the latest Sample chose, by order, once it has run;
  // -1: none. Where another tp_rank samples its tokens are brought here.
  virtual int32_t* chosen() = 0;
  // In place of Sample where another tp_rank samples: once what is enqueued has run, chosen() holds
  // its tokens of the orders, and they become their slots' last tokens.
  virtual absl::Status Follow(std::span<const SampleOrder> orders) = 0;
  // Enqueues the orders of logits [orders, vocab]. Each Sample is followed by its Collect; the next
  // Sample may come before it, the one after may not.
  virtual absl::Status Sample(const float* logits, std::span<const SampleOrder> orders) = 0;
  // Waits for the oldest Sample. Valid until the next Collect.
  virtual absl::StatusOr<std::span<const SampleOutcome>> Collect() = 0;
};

// Whether the parameters look at a sequence's earlier tokens.
bool NeedsCounts(const SamplingParams& params);

// Log-softmax of the logits [vocab] at `token`, its rank, and the `num_top` likeliest.
TokenLogprob LogprobOf(std::span<const float> logits, int32_t token, int num_top);

}  // namespace rootstock
