#include "coordinator/engine/live_request.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace rootstock {

Order Sequence::order() const { return request->number.value * kOrdersPerRequest + index; }

uint32_t Sequence::length() const {
  return request->resolved.prompt_tokens() + static_cast<uint32_t>(outputs.size()) +
         samples_in_flight;
}

int32_t Sequence::token_at(uint32_t position) const {
  const std::vector<int32_t>& prompt = request->resolved.prompt;
  return position < prompt.size() ? prompt[position] : outputs[position - prompt.size()];
}

bool Sequence::wants_rows() const {
  return running && outputs.size() + samples_in_flight < request->resolved.max_tokens;
}

uint64_t Sequence::prompt_token_bytes() const {
  const ResolvedRequest& resolved = request->resolved;
  const bool wanted = resolved.sampling.prompt_logprobs >= 0 && index == 0 &&
                      !prompt_logprobs_sent && computed < resolved.prompt_tokens();
  return wanted ? LogprobBytes(static_cast<uint64_t>(resolved.sampling.prompt_logprobs)) : 0;
}

LiveRequest::LiveRequest(RequestNumber n, ResolvedRequest r)
    : number(n), resolved(std::move(r)), sequences(resolved.n), stopped(resolved.n) {
  for (uint32_t i = 0; i < sequences.size(); ++i) {
    sequences[i].request = this;
    sequences[i].index = i;
  }
}

bool LiveRequest::all_finished() const {
  return std::all_of(sequences.begin(), sequences.end(),
                     [](const Sequence& s) { return s.finished; });
}

bool LiveRequest::shares_prompt() const {
  return resolved.n > 1 && resolved.sampling.repetition_penalty == 1.0f;
}

bool LiveRequest::rows_in_flight() const {
  return std::any_of(sequences.begin(), sequences.end(),
                     [](const Sequence& s) { return s.rows_in_flight > 0; });
}

absl::Status AbortStatus(const LiveRequest& request) {
  const std::string& id = request.resolved.request_id;
  switch (request.abort) {
    case AbortCause::kDeadline:
      return MakeError(absl::StatusCode::kDeadlineExceeded, Reason::kDeadlineExceeded, "request",
                       id, "its deadline passed");
    case AbortCause::kDraining:
      return MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "request", id,
                       "the coordinator stops, and its time to drain is over");
    default:
      return MakeError(absl::StatusCode::kCancelled, Reason::kCancelled, "request", id,
                       "cancelled by the client");
  }
}

}  // namespace rootstock
