#include "coordinator/request/request.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/adapter_name.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr int32_t kMaxSamples = 128;
// Keep one plan's bytes bounded: these lists travel with each new sequence.
constexpr size_t kMaxListedTokens = 1024;
constexpr size_t kMaxIdBytes = 256;
// gRPC states timeouts to three digits or fewer, rounded up: under 1 % too long, taken twice.
constexpr int64_t kTimeoutRounding = 50;
constexpr absl::Duration kTransit = absl::Milliseconds(50);

template <typename T>
absl::Status Bad(const std::string& field, const T& value, const std::string& text) {
  return InvalidField(Reason::kInvalidArgument, field, absl::StrCat(value), text);
}

// NaN fails every comparison, so ranges are stated positively.
absl::Status InRange(const std::string& field, const std::optional<float>& value, float low,
                     float high) {
  if (!value || (*value >= low && *value <= high)) return absl::OkStatus();
  return Bad(field, *value, absl::StrCat("must be from ", low, " to ", high));
}

absl::Status CheckSampling(const SamplingRequest& s, int32_t vocab_size) {
  if (s.temperature && !(*s.temperature >= 0 && std::isfinite(*s.temperature))) {
    return Bad("temperature", *s.temperature, "must be 0 or more, and finite");
  }
  if (s.top_p && !(*s.top_p > 0 && *s.top_p <= 1)) {
    return Bad("top_p", *s.top_p, "must be over 0 and at most 1");
  }
  if (s.top_k && *s.top_k < -1) {
    return Bad("top_k", *s.top_k, "must be 1 or more, or 0 or -1 for all tokens");
  }
  RETURN_IF_ERROR(InRange("min_p", s.min_p, 0, 1));
  RETURN_IF_ERROR(InRange("presence_penalty", s.presence_penalty, -2, 2));
  RETURN_IF_ERROR(InRange("frequency_penalty", s.frequency_penalty, -2, 2));
  if (s.repetition_penalty &&
      !(*s.repetition_penalty > 0 && std::isfinite(*s.repetition_penalty))) {
    return Bad("repetition_penalty", *s.repetition_penalty, "must be over 0, and finite");
  }
  if (s.logit_bias.size() > kMaxListedTokens) {
    return Bad("logit_bias", s.logit_bias.size(), "at most 1024 entries");
  }
  for (const auto& [token, bias] : s.logit_bias) {
    if (token < 0 || token >= vocab_size) {
      return Bad("logit_bias", token, absl::StrCat("no such token id, the model has ", vocab_size));
    }
    RETURN_IF_ERROR(InRange("logit_bias", bias, -100, 100));
  }
  return absl::OkStatus();
}

absl::Status CheckCount(const std::string& field, const std::optional<int32_t>& value,
                        uint32_t most) {
  if (!value || (*value >= 0 && static_cast<uint32_t>(*value) <= most)) return absl::OkStatus();
  return Bad(field, *value, absl::StrCat("must be from 0 to ", most));
}

absl::Status CheckTokens(const std::string& field, const std::vector<int32_t>& ids,
                         int32_t vocab_size) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return Bad(field, id, absl::StrCat("no such token id, the model has ", vocab_size));
    }
  }
  return absl::OkStatus();
}

SamplingParams ApplyDefaults(const GenerateRequest& request, const ServedModel& model) {
  const SamplingRequest& s = request.sampling;
  const GenerationDefaults& d = model.defaults;
  SamplingParams out;
  // A generation_config that says do_sample false means greedy unless the request says more.
  const float temperature =
      d.do_sample.value_or(true) ? d.temperature.value_or(out.temperature) : 0.0f;
  out.temperature = s.temperature.value_or(temperature);
  out.top_p = s.top_p.value_or(d.top_p.value_or(out.top_p));
  out.top_k = std::max(s.top_k.value_or(d.top_k.value_or(out.top_k)), 0);
  if (out.top_k >= model.vocab_size) out.top_k = 0;
  out.min_p = s.min_p.value_or(d.min_p.value_or(out.min_p));
  out.presence_penalty = s.presence_penalty.value_or(out.presence_penalty);
  out.frequency_penalty = s.frequency_penalty.value_or(out.frequency_penalty);
  out.repetition_penalty =
      s.repetition_penalty.value_or(d.repetition_penalty.value_or(out.repetition_penalty));
  out.logit_bias = s.logit_bias;
  out.logprobs = request.logprobs.value_or(-1);
  out.prompt_logprobs = request.prompt_logprobs.value_or(-1);
  return out;
}

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

absl::Status CheckFields(const GenerateRequest& request, const ServedModel& model) {
  if (request.model.empty()) {
    return InvalidField(
        Reason::kInvalidArgument, "model", "",
        absl::StrCat("is required: the base's name, ", model.name, ", or an adapter's"));
  }
  if (request.text.has_value() == request.token_ids.has_value()) {
    return InvalidField(Reason::kEmptyPrompt, "prompt", "",
                        "exactly one of text and token_ids is needed");
  }
  if (request.request_id.size() > kMaxIdBytes) {
    return Bad("request_id", request.request_id, "at most 256 bytes");
  }
  if (!IsPlainName(request.tenant)) {
    return Bad("tenant", request.tenant, absl::StrCat("must match ", kNamePattern));
  }
  RETURN_IF_ERROR(CheckSampling(request.sampling, model.vocab_size));
  if (request.max_tokens && *request.max_tokens < 1) {
    return Bad("max_tokens", *request.max_tokens, "must be 1 or more");
  }
  if (request.min_tokens < 0) return Bad("min_tokens", request.min_tokens, "must be 0 or more");
  if (request.max_tokens && request.min_tokens > *request.max_tokens) {
    return Bad("min_tokens", request.min_tokens,
               absl::StrCat("must not be over max_tokens, ", *request.max_tokens));
  }
  if (request.n < 1 || request.n > kMaxSamples) {
    return Bad("n", request.n, absl::StrCat("must be from 1 to ", kMaxSamples));
  }
  RETURN_IF_ERROR(CheckCount("logprobs", request.logprobs, model.max_logprobs));
  RETURN_IF_ERROR(CheckCount("prompt_logprobs", request.prompt_logprobs, model.max_logprobs));
  if (request.stop_token_ids.size() > kMaxListedTokens) {
    return Bad("stop_token_ids", request.stop_token_ids.size(), "at most 1024 entries");
  }
  RETURN_IF_ERROR(CheckTokens("stop_token_ids", request.stop_token_ids, model.vocab_size));
  if (request.token_ids) {
    RETURN_IF_ERROR(CheckTokens("token_ids", *request.token_ids, model.vocab_size));
  }
  return absl::OkStatus();
}

absl::StatusOr<ResolvedRequest> Resolve(const GenerateRequest& request, const ServedModel& model,
                                        std::vector<int32_t> prompt, AdapterHandle adapter,
                                        uint64_t drawn_seed) {
  if (prompt.empty()) {
    return InvalidField(Reason::kEmptyPrompt, "prompt", "", "it has no tokens");
  }
  if (prompt.size() >= model.max_model_len) {
    return InvalidField(Reason::kContextLength, "prompt", absl::StrCat(prompt.size()),
                        absl::StrCat("tokens; the context of ", model.max_model_len,
                                     " leaves no room for an answer"));
  }
  RETURN_IF_ERROR(CheckTokens("prompt", prompt, model.vocab_size));
  ResolvedRequest out;
  out.request_id = request.request_id;
  out.tenant = request.tenant;
  out.model = request.model;
  out.adapter = std::move(adapter);
  out.sampling = ApplyDefaults(request, model);
  out.seed = request.sampling.seed.value_or(drawn_seed);
  out.n = static_cast<uint32_t>(request.n);
  const uint32_t room = model.max_model_len - static_cast<uint32_t>(prompt.size());
  out.max_tokens_asked = request.max_tokens.has_value();
  out.max_tokens = request.max_tokens ? static_cast<uint32_t>(*request.max_tokens) : room;
  if (out.max_tokens > room) {
    return InvalidField(Reason::kContextLength, "max_tokens", absl::StrCat(out.max_tokens),
                        absl::StrCat("with the prompt's ", prompt.size(), " tokens it exceeds the ",
                                     "context of ", model.max_model_len));
  }
  out.min_tokens = static_cast<uint32_t>(request.min_tokens);
  if (out.min_tokens > out.max_tokens) {
    return Bad("min_tokens", out.min_tokens,
               absl::StrCat("the context leaves ", out.max_tokens, " tokens"));
  }
  if (!request.ignore_eos) out.eos = model.eos_token_ids;
  out.stop_ids = request.stop_token_ids;
  out.prompt = std::move(prompt);
  out.deadline = request.deadline;
  if (out.min_tokens > 0) {
    out.sampling.min_tokens = out.min_tokens;
    out.sampling.banned_until_min = out.eos;
    for (const int32_t id : out.stop_ids) {
      if (!Contains(out.sampling.banned_until_min, id)) {
        out.sampling.banned_until_min.push_back(id);
      }
    }
  }
  return out;
}

bool EndedByDeadline(absl::Time arrived, absl::Time deadline, absl::Time now) {
  if (deadline == absl::InfiniteFuture()) return false;
  return now >= deadline - kTransit - (deadline - arrived) / kTimeoutRounding;
}

FinishOutcome CheckFinish(const ResolvedRequest& request, uint32_t count, int32_t token) {
  if (count > request.min_tokens &&
      (Contains(request.eos, token) || Contains(request.stop_ids, token))) {
    return {FinishReason::kStop, absl::StrCat(token)};
  }
  if (count >= request.max_tokens) return {FinishReason::kLength, ""};
  return {};
}

}  // namespace rootstock
