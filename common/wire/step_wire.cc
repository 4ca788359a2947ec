#include "common/wire/step_wire.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/plan_wire.h"

namespace rootstock {
namespace {

absl::Status Bad(const std::string& field, const std::string& value, const std::string& text) {
  return InvalidField(Reason::kInvalidArgument, field, value, text);
}

void SamplingToProto(const SamplingParams& in, v1::WireSampling* out) {
  out->set_temperature(in.temperature);
  out->set_top_p(in.top_p);
  out->set_top_k(in.top_k);
  out->set_min_p(in.min_p);
  out->set_presence_penalty(in.presence_penalty);
  out->set_frequency_penalty(in.frequency_penalty);
  out->set_repetition_penalty(in.repetition_penalty);
  for (const auto& [token, value] : in.logit_bias) {
    out->add_bias_tokens(token);
    out->add_bias_values(value);
  }
  out->set_logprobs(in.logprobs);
  out->set_prompt_logprobs(in.prompt_logprobs);
  out->set_min_tokens(in.min_tokens);
  out->mutable_banned_until_min()->Add(in.banned_until_min.begin(), in.banned_until_min.end());
}

absl::StatusOr<SamplingParams> SamplingFromProto(const v1::WireSampling& in,
                                                 const std::string& field) {
  if (in.bias_tokens_size() != in.bias_values_size()) {
    return Bad(absl::StrCat(field, ".bias_values"), absl::StrCat(in.bias_values_size()),
               absl::StrCat("wants ", in.bias_tokens_size(), ", one a bias token"));
  }
  SamplingParams out;
  out.temperature = in.temperature();
  out.top_p = in.top_p();
  out.top_k = in.top_k();
  out.min_p = in.min_p();
  out.presence_penalty = in.presence_penalty();
  out.frequency_penalty = in.frequency_penalty();
  out.repetition_penalty = in.repetition_penalty();
  for (int i = 0; i < in.bias_tokens_size(); ++i) {
    out.logit_bias.emplace_back(in.bias_tokens(i), in.bias_values(i));
  }
  out.logprobs = in.logprobs();
  out.prompt_logprobs = in.prompt_logprobs();
  out.min_tokens = in.min_tokens();
  out.banned_until_min.assign(in.banned_until_min().begin(), in.banned_until_min().end());
  return out;
}

void SequenceToProto(const NewSequence& in, v1::NewSequence* out) {
  out->set_slot(in.slot.value);
  out->set_num_prompt_tokens(in.num_prompt_tokens);
  out->set_num_tokens(in.num_tokens);
  SamplingToProto(in.sampling, out->mutable_sampling());
  out->set_seed(in.seed);
  out->set_sample_index(in.sample_index);
  for (const AdapterSpan& span : in.spans) {
    v1::WireSpan* s = out->add_spans();
    s->set_begin(span.begin);
    s->set_end(span.end);
    for (const AdapterUse& use : span.adapters) {
      v1::WireAdapterUse* u = s->add_adapters();
      u->set_digest(DigestToBytes(use.adapter));
      u->set_scale(use.scale);
    }
  }
  out->mutable_cached_tokens()->Add(in.cached_tokens.begin(), in.cached_tokens.end());
}

absl::StatusOr<AdapterSpan> SpanFromProto(const v1::WireSpan& in, const std::string& field) {
  if (in.end() != 0 && in.end() <= in.begin()) {
    return Bad(absl::StrCat(field, ".end"), absl::StrCat(in.end()),
               absl::StrCat("must be 0 or above begin ", in.begin()));
  }
  AdapterSpan out{in.begin(), in.end(), {}};
  for (int i = 0; i < in.adapters_size(); ++i) {
    ASSIGN_OR_RETURN(
        const Digest digest,
        DigestFromBytes(in.adapters(i).digest(), absl::StrCat(field, ".adapters[", i, "].digest")));
    out.adapters.push_back({digest, in.adapters(i).scale()});
  }
  return out;
}

absl::StatusOr<NewSequence> SequenceFromProto(const v1::NewSequence& in, const std::string& field) {
  if (!in.has_sampling()) return Bad(absl::StrCat(field, ".sampling"), "", "is missing");
  if (!in.constraint().empty()) {
    return Bad(absl::StrCat(field, ".constraint"), "", "this build has no grammars");
  }
  if (in.num_prompt_tokens() == 0 || in.num_tokens() < in.num_prompt_tokens()) {
    return Bad(absl::StrCat(field, ".num_prompt_tokens"), absl::StrCat(in.num_prompt_tokens()),
               absl::StrCat("must lie in [1, num_tokens ", in.num_tokens(), "]"));
  }
  NewSequence out;
  out.slot = SequenceSlot(in.slot());
  out.num_prompt_tokens = in.num_prompt_tokens();
  out.num_tokens = in.num_tokens();
  ASSIGN_OR_RETURN(out.sampling,
                   SamplingFromProto(in.sampling(), absl::StrCat(field, ".sampling")));
  out.seed = in.seed();
  out.sample_index = in.sample_index();
  for (int i = 0; i < in.spans_size(); ++i) {
    ASSIGN_OR_RETURN(AdapterSpan span,
                     SpanFromProto(in.spans(i), absl::StrCat(field, ".spans[", i, "]")));
    out.spans.push_back(std::move(span));
  }
  out.cached_tokens.assign(in.cached_tokens().begin(), in.cached_tokens().end());
  return out;
}

void RowToProto(const PlanRow& in, v1::PlanRow* out) {
  out->set_slot(in.slot.value);
  // A decode row's length of 1 is told by nothing, which keeps wide plans small.
  if (in.query_len != 1) out->set_query_len(in.query_len);
  out->set_position(in.position);
  out->mutable_tokens()->Add(in.tokens.begin(), in.tokens.end());
  IdsToProto(in.pages, out->mutable_pages());
  out->set_output(static_cast<uint32_t>(in.output));
}

absl::StatusOr<PlanRow> RowFromProto(const v1::PlanRow& in, const std::string& field) {
  PlanRow out;
  out.slot = SequenceSlot(in.slot());
  out.query_len = in.query_len() == 0 ? 1 : in.query_len();
  out.position = in.position();
  const size_t tokens = in.tokens_size();
  if (tokens != out.query_len && !(tokens == 0 && out.query_len == 1)) {
    return Bad(absl::StrCat(field, ".tokens"), absl::StrCat(tokens),
               absl::StrCat("wants ", out.query_len, ", the row's query_len"));
  }
  out.tokens.assign(in.tokens().begin(), in.tokens().end());
  out.pages = IdsFromProto<PageId>(in.pages());
  if (in.output() > static_cast<uint32_t>(RowOutput::kTokenAndPromptLogprobs)) {
    return Bad(absl::StrCat(field, ".output"), absl::StrCat(in.output()), "unknown output kind");
  }
  out.output = static_cast<RowOutput>(in.output());
  return out;
}

void LogprobToProto(const TokenLogprob& in, v1::WireLogprob* out) {
  out->set_token(in.token);
  out->set_logprob(in.logprob);
  out->set_rank(in.rank);
  for (const auto& [token, logprob] : in.top) {
    out->add_top_tokens(token);
    out->add_top_logprobs(logprob);
  }
}

absl::StatusOr<TokenLogprob> LogprobFromProto(const v1::WireLogprob& in, const std::string& field) {
  if (in.top_tokens_size() != in.top_logprobs_size()) {
    return Bad(absl::StrCat(field, ".top_logprobs"), absl::StrCat(in.top_logprobs_size()),
               absl::StrCat("wants ", in.top_tokens_size(), ", one a top token"));
  }
  TokenLogprob out{in.token(), in.logprob(), in.rank(), {}};
  for (int i = 0; i < in.top_tokens_size(); ++i) {
    out.top.emplace_back(in.top_tokens(i), in.top_logprobs(i));
  }
  return out;
}

absl::StatusOr<RowResult> RowResultFromProto(const v1::RowResult& in, const std::string& field) {
  RowResult out;
  out.slot = SequenceSlot(in.slot());
  out.tokens.assign(in.tokens().begin(), in.tokens().end());
  for (int i = 0; i < in.logprobs_size(); ++i) {
    ASSIGN_OR_RETURN(TokenLogprob logprob,
                     LogprobFromProto(in.logprobs(i), absl::StrCat(field, ".logprobs[", i, "]")));
    out.logprobs.push_back(std::move(logprob));
  }
  for (int i = 0; i < in.prompt_logprobs_size(); ++i) {
    ASSIGN_OR_RETURN(
        TokenLogprob logprob,
        LogprobFromProto(in.prompt_logprobs(i), absl::StrCat(field, ".prompt_logprobs[", i, "]")));
    out.prompt_logprobs.push_back(std::move(logprob));
  }
  if (in.error() > 1) {
    return Bad(absl::StrCat(field, ".error"), absl::StrCat(in.error()), "unknown row error");
  }
  out.nonfinite = in.error() == 1;
  return out;
}

}  // namespace

void StepToProto(const StepPlan& in, v1::StepPlan* out) {
  for (const NewSequence& s : in.new_sequences) SequenceToProto(s, out->add_new_sequences());
  for (const PlanRow& row : in.rows) RowToProto(row, out->add_rows());
  out->set_eager(in.eager);
}

absl::StatusOr<StepPlan> StepFromProto(const v1::StepPlan& in) {
  if (!in.weight_set().empty()) {
    return Bad("command.step.weight_set", "", "this build serves the base weights only");
  }
  StepPlan out;
  for (int i = 0; i < in.new_sequences_size(); ++i) {
    ASSIGN_OR_RETURN(NewSequence s,
                     SequenceFromProto(in.new_sequences(i),
                                       absl::StrCat("command.step.new_sequences[", i, "]")));
    out.new_sequences.push_back(std::move(s));
  }
  out.rows.reserve(in.rows_size());
  for (int i = 0; i < in.rows_size(); ++i) {
    ASSIGN_OR_RETURN(PlanRow row,
                     RowFromProto(in.rows(i), absl::StrCat("command.step.rows[", i, "]")));
    out.rows.push_back(std::move(row));
  }
  out.eager = in.eager();
  return out;
}

void ResultToProto(const StepResult& in, v1::StepResult* out) {
  for (const RowResult& row : in.rows) {
    v1::RowResult* r = out->add_rows();
    r->set_slot(row.slot.value);
    r->mutable_tokens()->Add(row.tokens.begin(), row.tokens.end());
    for (const TokenLogprob& l : row.logprobs) LogprobToProto(l, r->add_logprobs());
    for (const TokenLogprob& l : row.prompt_logprobs) LogprobToProto(l, r->add_prompt_logprobs());
    r->set_error(row.nonfinite ? 1 : 0);
  }
  out->set_duration_us(in.duration_us);
  out->set_distinct_adapters(in.distinct_adapters);
}

absl::StatusOr<StepResult> ResultFromProto(const v1::StepResult& in) {
  StepResult out;
  out.rows.reserve(in.rows_size());
  for (int i = 0; i < in.rows_size(); ++i) {
    ASSIGN_OR_RETURN(RowResult row,
                     RowResultFromProto(in.rows(i), absl::StrCat("completion.step.rows[", i, "]")));
    out.rows.push_back(std::move(row));
  }
  out.duration_us = in.duration_us();
  out.distinct_adapters = in.distinct_adapters();
  return out;
}

}  // namespace rootstock
