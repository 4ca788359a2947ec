// A checked request: every default applied, the model bound to content. Nothing is looked up later.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/adapters/adapter.h"
#include "coordinator/request/generate.h"

namespace rootstock {

// What requests are checked against.
struct ServedModel {
  std::string name;
  int32_t vocab_size = 0;
  uint32_t max_model_len = 0;
  uint32_t max_logprobs = 20;
  GenerationDefaults defaults;
  std::vector<int32_t> eos_token_ids;  // generation_config's, else config's
};

// Immutable after Resolve; shared by the threads that serve the request.
struct ResolvedRequest {
  std::string request_id;
  std::string tenant;
  std::string model;           // as asked for
  std::string resolved_model;  // "NAME@N", or the base's name
  AdapterHandle adapter;       // null: the base
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  uint64_t seed = 0;
  uint32_t n = 1;
  uint32_t max_tokens = 1;        // of output, within the context
  bool max_tokens_asked = false;  // false: may be cut to what a group's pages hold
  uint32_t min_tokens = 0;
  std::vector<int32_t> eos;  // empty with ignore_eos
  std::vector<int32_t> stop_ids;
  absl::Time deadline = absl::InfiniteFuture();

  uint32_t prompt_tokens() const { return static_cast<uint32_t>(prompt.size()); }
  // Positions a sample may compute: the last token is sampled, never run.
  uint32_t max_positions() const { return prompt_tokens() + max_tokens - 1; }
};

// Everything that can be refused before the model is looked up and the text encoded.
// INVALID_ARGUMENT naming field and value.
absl::Status CheckFields(const GenerateRequest& request, const ServedModel& model);

// `prompt`: the encoded text, or the request's ids. `drawn_seed` is used when none was asked for.
// INVALID_ARGUMENT / empty_prompt, context_length (the prompt, or prompt and max_tokens),
// invalid_argument (a token id out of range).
absl::StatusOr<ResolvedRequest> Resolve(const GenerateRequest& request, const ServedModel& model,
                                        std::vector<int32_t> prompt, AdapterHandle adapter,
                                        uint64_t drawn_seed);

// Whether a call that was broken off at `now` ended by its deadline. A client gives up by its own
// clock, and what it states was rounded up on the wire: that may be heard a little before.
bool EndedByDeadline(absl::Time arrived, absl::Time deadline, absl::Time now);

// Whether the output token number `count` (from 1), which is `token`, ends its sample.
// Eos and stop ids count only after min_tokens other tokens.
struct FinishOutcome {
  FinishReason reason = FinishReason::kNone;
  std::string stop_match;  // decimal token id
};
FinishOutcome CheckFinish(const ResolvedRequest& request, uint32_t count, int32_t token);

}  // namespace rootstock
