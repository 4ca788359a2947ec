#include "coordinator/rpc/convert.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "rootstock/v1/inference.pb.h"

namespace rootstock {
namespace {

std::string DrawRequestId() {
  std::random_device device;
  std::string id = "req-";
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(device(), absl::kZeroPad8));
  return id;
}

template <typename T>
std::optional<T> Optional(bool has, T value) {
  return has ? std::optional<T>(value) : std::nullopt;
}

SamplingRequest FromProto(const v1::SamplingParams& in) {
  SamplingRequest out;
  out.temperature = Optional(in.has_temperature(), in.temperature());
  out.top_p = Optional(in.has_top_p(), in.top_p());
  out.top_k = Optional(in.has_top_k(), in.top_k());
  out.min_p = Optional(in.has_min_p(), in.min_p());
  out.presence_penalty = Optional(in.has_presence_penalty(), in.presence_penalty());
  out.frequency_penalty = Optional(in.has_frequency_penalty(), in.frequency_penalty());
  out.repetition_penalty = Optional(in.has_repetition_penalty(), in.repetition_penalty());
  out.logit_bias.assign(in.logit_bias().begin(), in.logit_bias().end());
  std::sort(out.logit_bias.begin(), out.logit_bias.end());
  out.seed = Optional(in.has_seed(), in.seed());
  return out;
}

void ToProto(const TokenLogprob& in, const Frontend& frontend, v1::TokenLogprob* out) {
  out->set_token_id(in.token);
  out->set_logprob(in.logprob);
  out->set_rank(in.rank);
  out->set_text(frontend.TokenText(in.token));
  for (const auto& [token, logprob] : in.top) {
    v1::TopLogprob* top = out->add_top();
    top->set_token_id(token);
    top->set_logprob(logprob);
    top->set_text(frontend.TokenText(token));
  }
}

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return v1::FINISH_REASON_UNSPECIFIED;
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case FinishReason::kError:
      return v1::FINISH_REASON_ERROR;
  }
  return v1::FINISH_REASON_ERROR;
}

}  // namespace

absl::StatusOr<GenerateRequest> FromProto(const v1::GenerateRequest& in) {
  GenerateRequest out;
  out.request_id = in.request_id().empty() ? DrawRequestId() : in.request_id();
  if (!in.tenant().empty()) out.tenant = in.tenant();
  out.model = in.model();
  switch (in.prompt_case()) {
    case v1::GenerateRequest::kText:
      out.text = in.text();
      break;
    case v1::GenerateRequest::kTokenIds:
      out.token_ids.emplace(in.token_ids().ids().begin(), in.token_ids().ids().end());
      break;
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return InvalidField(Reason::kEmptyPrompt, "prompt", "", "neither text nor token_ids given");
  }
  if (in.has_add_special_tokens()) out.add_special_tokens = in.add_special_tokens();
  out.parse_special = in.parse_special();
  out.sampling = FromProto(in.sampling());
  out.max_tokens = Optional(in.has_max_tokens(), in.max_tokens());
  out.min_tokens = in.min_tokens();
  if (in.has_n()) out.n = in.n();
  out.stop.assign(in.stop().begin(), in.stop().end());
  out.stop_token_ids.assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
  out.ignore_eos = in.ignore_eos();
  out.include_stop_in_output = in.include_stop_in_output();
  out.logprobs = Optional(in.has_logprobs(), in.logprobs());
  out.prompt_logprobs = Optional(in.has_prompt_logprobs(), in.prompt_logprobs());
  if (in.has_skip_special_tokens()) out.skip_special_tokens = in.skip_special_tokens();
  return out;
}

void ToProto(const GenerateAccepted& in, v1::Accepted* out) {
  out->set_request_id(in.request_id);
  out->set_model(in.model);
  out->set_resolved_model(in.resolved_model);
  if (in.adapter.has_value()) out->set_adapter_digest(in.adapter->Hex());
  out->set_seed(in.seed);
  out->set_prompt_tokens(in.prompt_tokens);
}

void ToProto(const GenerateDelta& in, bool with_ids, const Frontend& frontend, v1::Delta* out) {
  out->set_index(in.index);
  out->set_text(in.text);
  if (with_ids) out->mutable_token_ids()->Assign(in.token_ids.begin(), in.token_ids.end());
  for (const TokenLogprob& logprob : in.logprobs) ToProto(logprob, frontend, out->add_logprobs());
  out->set_finish_reason(ToProto(in.finish_reason));
  out->set_stop_match(in.stop_match);
}

void ToProto(const std::vector<TokenLogprob>& in, const Frontend& frontend,
             v1::PromptLogprobs* out) {
  for (const TokenLogprob& logprob : in) ToProto(logprob, frontend, out->add_tokens());
}

}  // namespace rootstock
