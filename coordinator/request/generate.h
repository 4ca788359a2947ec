// A client's request and what it hears back, free of any transport.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/digest.h"
#include "common/base/ids.h"
#include "common/plan/plan.h"

namespace rootstock {

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };

// As asked; absent fields take generation_config's defaults, then SamplingParams'.
struct SamplingRequest {
  std::optional<float> temperature, top_p, min_p;
  std::optional<float> presence_penalty, frequency_penalty, repetition_penalty;
  std::optional<int32_t> top_k;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::optional<uint64_t> seed;
};

class QueuePlace;  // of the engine

struct GenerateRequest {
  std::string request_id;
  std::string tenant = "default";
  std::string model;                // base's served name, NAME, NAME@N or an alias
  std::optional<std::string> text;  // exactly one of text and token_ids
  std::optional<std::vector<int32_t>> token_ids;
  bool add_special_tokens = true;
  bool parse_special = false;
  SamplingRequest sampling;
  std::optional<int32_t> max_tokens;
  int32_t min_tokens = 0;
  int32_t n = 1;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_in_output = false;
  std::optional<int32_t> logprobs;
  std::optional<int32_t> prompt_logprobs;
  bool skip_special_tokens = true;
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<QueuePlace> place;  // that Engine::Enter gave it; null: none yet
};

struct GenerateAccepted {
  std::string request_id;
  std::string model;           // as asked for
  std::string resolved_model;  // what that was: "NAME@N", or the base's name
  std::optional<Digest> adapter;
  uint64_t seed = 0;
  int32_t prompt_tokens = 0;
};

struct GenerateDelta {
  int index = 0;
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  std::string stop_match;
};

struct GenerateUsage {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
};

// Hears one request's answer: OnAccepted, OnPromptLogprobs (when asked for), OnDelta…, OnDone.
// Calls come in order, one at a time, and must not block. Nothing follows OnDone.
class GenerateSink {
 public:
  virtual ~GenerateSink() = default;
  virtual void OnAccepted(const GenerateAccepted& accepted) = 0;
  virtual void OnPromptLogprobs(std::vector<TokenLogprob> logprobs) = 0;
  virtual void OnDelta(GenerateDelta delta) = 0;
  virtual void OnDone(const absl::Status& status, const GenerateUsage& usage) = 0;
};

// Tokens of one sample as a group engine receives them, before text is made of them.
struct TokenBatch {
  int index = 0;
  std::vector<int32_t> tokens;
  std::vector<TokenLogprob> logprobs;
  std::vector<TokenLogprob> prompt_logprobs;
  FinishReason finish_reason = FinishReason::kNone;  // by token: eos, stop id, length
  std::string stop_match;                            // decimal token id that ended it
};

// Where a group engine puts a request's tokens: the frontend's output of that request.
// *Thread-safe*; never blocks.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void Push(TokenBatch batch) = 0;
  // The request failed or all its samples ended. Nothing follows.
  virtual void Close(const absl::Status& status) = 0;
};

}  // namespace rootstock
