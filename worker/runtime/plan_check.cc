#include "worker/runtime/plan_check.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/ops/ops.h"

namespace rootstock {
namespace {

absl::Status Bad(const std::string& field, uint64_t value, const std::string& text) {
  return InvalidField(Reason::kInvalidArgument, field, absl::StrCat(value), text);
}

uint32_t MaxLength(const PlanContext& context) {
  const auto positions = static_cast<uint32_t>(context.model.max_position);
  const uint32_t limit = context.limits.max_model_len;
  return limit == 0 ? positions : std::min(limit, positions);
}

absl::Status CheckSpans(const std::vector<AdapterSpan>& spans, const std::string& field) {
  uint32_t end = 0;
  bool open = false;
  for (size_t i = 0; i < spans.size(); ++i) {
    const AdapterSpan& span = spans[i];
    if (open || span.begin < end || (span.end != 0 && span.end <= span.begin)) {
      return Bad(absl::StrCat(field, ".spans[", i, "].begin"), span.begin,
                 "spans must ascend without overlap");
    }
    if (span.adapters.size() > kMaxStackedAdapters) {
      return Bad(absl::StrCat(field, ".spans[", i, "].adapters"), span.adapters.size(),
                 absl::StrCat("a position runs with at most ", kMaxStackedAdapters));
    }
    for (const AdapterUse& use : span.adapters) {
      if (!std::isfinite(use.scale)) {
        return Bad(absl::StrCat(field, ".spans[", i, "].scale"), 0, "is not finite");
      }
    }
    open = span.end == 0;
    end = span.end;
  }
  return absl::OkStatus();
}

absl::Status CheckNewSequence(const NewSequence& s, const PlanContext& context,
                              const std::string& field) {
  if (context.sequences->contains(s.slot)) {
    return Bad(absl::StrCat(field, ".slot"), s.slot.value,
               "holds a sequence that was not released");
  }
  if (s.slot.value >= context.limits.max_num_seqs) {
    return Bad(absl::StrCat(field, ".slot"), s.slot.value,
               absl::StrCat("slots are below max_num_seqs ", context.limits.max_num_seqs));
  }
  if (s.num_prompt_tokens == 0 || s.num_prompt_tokens > s.num_tokens) {
    return Bad(absl::StrCat(field, ".num_prompt_tokens"), s.num_prompt_tokens,
               absl::StrCat("must lie in [1, num_tokens ", s.num_tokens, "]"));
  }
  if (s.num_tokens > MaxLength(context)) {
    return Bad(absl::StrCat(field, ".num_tokens"), s.num_tokens,
               absl::StrCat("is over the context of ", MaxLength(context)));
  }
  return CheckSpans(s.spans, field);
}

// What a row starts from: a slot of the table, or a sequence that this plan makes.
struct RowState {
  const NewSequence* spec = nullptr;
  bool fresh = true;
  bool has_sampled = false;
  uint32_t num_computed = 0;
  size_t num_pages = 0;
};

class RowCheck {
 public:
  RowCheck(const PlanRow& row, const RowState& state, bool eager, const PlanContext& context,
           const std::string& field)
      : row_(row), state_(state), eager_(eager), context_(context), field_(field) {}

  // Adds the row's adapters, span by span, to `uses`.
  absl::Status Check(size_t& uses) const {
    RETURN_IF_ERROR(CheckTokens());
    RETURN_IF_ERROR(CheckPosition());
    RETURN_IF_ERROR(CheckPages());
    RETURN_IF_ERROR(CheckOutput());
    return CheckAdapters(uses);
  }

 private:
  std::string Name(const char* part) const { return absl::StrCat(field_, ".", part); }
  uint32_t end() const { return row_.position + row_.query_len; }

  absl::Status CheckTokens() const {
    if (row_.query_len == 0) return Bad(Name("query_len"), 0, "must be positive");
    if (row_.tokens.empty()) {
      if (row_.query_len != 1) return Bad(Name("tokens"), 0, "only one token can be the last one");
      if (!state_.has_sampled) {
        return Bad(Name("tokens"), 0,
                   absl::StrCat("slot ", row_.slot.value, " has sampled no token to go on from"));
      }
      return absl::OkStatus();
    }
    if (row_.tokens.size() != row_.query_len) {
      return Bad(Name("tokens"), row_.tokens.size(), absl::StrCat("wants ", row_.query_len));
    }
    for (const int32_t token : row_.tokens) {
      if (token >= 0 && token < context_.model.vocab_size) continue;
      return InvalidField(Reason::kInvalidArgument, Name("tokens"), absl::StrCat(token),
                          absl::StrCat("is outside the vocabulary of ", context_.model.vocab_size));
    }
    return absl::OkStatus();
  }

  absl::Status CheckPosition() const {
    if (!state_.fresh && row_.position != state_.num_computed) {
      return Bad(Name("position"), row_.position,
                 absl::StrCat("slot ", row_.slot.value, " goes on at ", state_.num_computed));
    }
    const NewSequence& spec = *state_.spec;
    if (state_.fresh && row_.position >= spec.num_tokens) {
      return Bad(Name("position"), row_.position,
                 absl::StrCat("leaves nothing to run of ", spec.num_tokens, " tokens"));
    }
    if (state_.fresh && CountsEarlierTokens() && row_.position != spec.cached_tokens.size()) {
      return Bad(Name("position"), row_.position,
                 absl::StrCat("penalties count the tokens before it, ", spec.cached_tokens.size(),
                              " came as cached_tokens"));
    }
    if (row_.query_len > MaxLength(context_) || end() > MaxLength(context_)) {
      return Bad(Name("position"), row_.position,
                 absl::StrCat("ends at ", end(), ", over the context of ", MaxLength(context_)));
    }
    return absl::OkStatus();
  }

  // The repetition penalty counts all tokens, the others those after the prompt.
  bool CountsEarlierTokens() const {
    const NewSequence& spec = *state_.spec;
    return NeedsCounts(spec.sampling) &&
           (spec.sampling.repetition_penalty != 1.0f || row_.position > spec.num_prompt_tokens);
  }

  absl::Status CheckPages() const {
    for (const PageId page : row_.pages) {
      if (page.value == 0 || page.value >= context_.model.geometry.num_pages) {
        return Bad(Name("pages"), page.value,
                   absl::StrCat("is outside [1, ", context_.model.geometry.num_pages, ")"));
      }
      if ((*context_.adapter_pages)[page.value]) {
        return Bad(Name("pages"), page.value, "holds rows of a resident adapter");
      }
    }
    const uint64_t pages = state_.num_pages + row_.pages.size();
    if (pages * context_.model.geometry.page_tokens < end()) {
      return Bad(Name("pages"), row_.pages.size(),
                 absl::StrCat("slot ", row_.slot.value, " would hold ", pages, " pages for ", end(),
                              " tokens"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckOutput() const {
    const bool samples =
        row_.output == RowOutput::kToken || row_.output == RowOutput::kTokenAndPromptLogprobs;
    if (samples && end() < state_.spec->num_tokens) {
      return Bad(
          Name("output"), static_cast<uint64_t>(row_.output),
          absl::StrCat("samples after ", end(), " of ", state_.spec->num_tokens, " known tokens"));
    }
    const bool prompt = row_.output == RowOutput::kPromptLogprobs ||
                        row_.output == RowOutput::kTokenAndPromptLogprobs;
    if (prompt && state_.spec->sampling.prompt_logprobs < 0) {
      return Bad(Name("output"), static_cast<uint64_t>(row_.output),
                 "the sequence asked for no prompt logprobs");
    }
    return absl::OkStatus();
  }

  absl::Status CheckAdapters(size_t& uses) const {
    for (const AdapterSpan& span : state_.spec->spans) {
      if (span.begin >= end() || (span.end != 0 && span.end <= row_.position)) continue;
      uses += span.adapters.size();
      for (const AdapterUse& use : span.adapters) {
        const bool loading = context_.loading->contains(use.adapter);
        if (eager_ && loading) continue;
        if (!loading && context_.adapters->Find(use.adapter) != nullptr) continue;
        return MakeError(
            absl::StatusCode::kFailedPrecondition, Reason::kInvalidArgument, Name("adapter"),
            use.adapter.Short(),
            loading ? "is being loaded, and the plan is not eager" : "is not resident");
      }
    }
    return absl::OkStatus();
  }

  const PlanRow& row_;
  const RowState& state_;
  const bool eager_;
  const PlanContext& context_;
  const std::string& field_;
};

RowState StateOf(const Sequence& s) {
  return {&s.spec, s.fresh(), s.has_sampled, s.num_computed, s.page_table.size()};
}

}  // namespace

absl::Status CheckPlan(const StepPlan& plan, const PlanContext& context) {
  std::unordered_map<SequenceSlot, RowState> made;
  for (size_t i = 0; i < plan.new_sequences.size(); ++i) {
    const NewSequence& s = plan.new_sequences[i];
    const std::string field = absl::StrCat("new_sequences[", i, "]");
    RETURN_IF_ERROR(CheckNewSequence(s, context, field));
    if (!made.emplace(s.slot, RowState{&s}).second) {
      return Bad(absl::StrCat(field, ".slot"), s.slot.value, "is named twice");
    }
  }
  std::unordered_set<SequenceSlot> seen;
  uint64_t tokens = 0;
  size_t uses = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    const std::string field = absl::StrCat("rows[", i, "]");
    if (!seen.insert(row.slot).second) {
      return Bad(absl::StrCat(field, ".slot"), row.slot.value, "has another row in this plan");
    }
    RowState state;
    if (const auto it = made.find(row.slot); it != made.end()) {
      state = it->second;
    } else if (const auto old = context.sequences->find(row.slot);
               old != context.sequences->end()) {
      state = StateOf(old->second);
    } else {
      return Bad(absl::StrCat(field, ".slot"), row.slot.value, "holds no sequence");
    }
    RETURN_IF_ERROR(RowCheck(row, state, plan.eager, context, field).Check(uses));
    tokens += row.query_len;
  }
  if (const int most = MaxLoraGroups(static_cast<int>(context.limits.max_num_seqs));
      uses > static_cast<size_t>(most)) {
    return Bad("rows.adapters", uses,
               absl::StrCat("of all their spans are over the limit of ", most));
  }
  if (tokens > context.limits.max_num_batched_tokens) {
    return Bad(
        "rows", tokens,
        absl::StrCat("tokens are over the limit of ", context.limits.max_num_batched_tokens));
  }
  return absl::OkStatus();
}

std::vector<Digest> AdaptersOf(const StepPlan& plan, const SequenceTable& sequences) {
  std::unordered_map<SequenceSlot, const NewSequence*> specs;
  for (const NewSequence& s : plan.new_sequences) specs[s.slot] = &s;
  std::set<Digest> out;
  for (const PlanRow& row : plan.rows) {
    const auto made = specs.find(row.slot);
    const auto old = sequences.find(row.slot);
    if (made == specs.end() && old == sequences.end()) continue;
    const NewSequence& spec = made != specs.end() ? *made->second : old->second.spec;
    for (const AdapterSpan& span : spec.spans) {
      const bool before = span.end != 0 && span.end <= row.position;
      if (before || span.begin >= row.position + row.query_len) continue;
      for (const AdapterUse& use : span.adapters) out.insert(use.adapter);
    }
  }
  return {out.begin(), out.end()};
}

absl::Status CheckLoad(const LoadAdapter& load, const PlanContext& context) {
  if (context.loading->contains(load.digest)) {
    return MakeError(absl::StatusCode::kAlreadyExists, Reason::kDuplicate, "load.digest",
                     load.digest.Short(), "is being loaded");
  }
  if (context.adapters->Find(load.digest) != nullptr) {
    return MakeError(absl::StatusCode::kAlreadyExists, Reason::kDuplicate, "load.digest",
                     load.digest.Short(), "is resident");
  }
  std::unordered_set<PageId> seen;
  for (const PageId page : load.pages) {
    if (page.value == 0 || page.value >= context.model.geometry.num_pages) {
      return Bad("load.pages", page.value,
                 absl::StrCat("is outside [1, ", context.model.geometry.num_pages, ")"));
    }
    if (!seen.insert(page).second) return Bad("load.pages", page.value, "is named twice");
    if ((*context.adapter_pages)[page.value]) {
      return Bad("load.pages", page.value, "holds rows of a resident adapter");
    }
  }
  return absl::OkStatus();
}

}  // namespace rootstock
