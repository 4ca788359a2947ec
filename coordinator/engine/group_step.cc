// Plans one step ahead, and what their results do.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/engine/group_engine.h"

namespace rootstock {

CommandId GroupEngine::Send(decltype(Command::kind) kind) {
  const CommandId id(next_command_++);
  link_->Send({id, config_.report.epoch, std::move(kind)});
  return id;
}

void GroupEngine::ReleaseSlotsNow() {
  if (to_release_.empty()) return;
  // The stream is ordered: what is sent after the Release may use the slots.
  free_slots_.insert(free_slots_.end(), to_release_.begin(), to_release_.end());
  Send(ReleaseSlots{std::exchange(to_release_, {})});
}

void GroupEngine::Pump() {
  if (lost_) return;
  UnparkUsable();
  if (draining_) GiveBackIdle();
  ReleaseSlotsNow();
  while (steps_.size() < kMaxUncompleted) {
    const Decision decision = Decide();
    const bool again = !decision.preempt.empty();
    const bool step = !decision.rows.empty();
    Apply(decision);
    const bool usable = UnparkUsable();
    if (!step && !again && !usable) break;
  }
  ReleaseSlotsNow();
  Publish();
}

void GroupEngine::Apply(const Decision& decision) {
  for (const uint32_t i : decision.preempt) {
    Sequence& sequence = *view_running_[i];
    config_.metrics->preemptions.Add();
    const uint32_t before = pages_.kv_pages();
    StopRunning(sequence);
    config_.metrics->kv_pages_pressure.Add(before - pages_.kv_pages());
    Enqueue(sequence);
  }
  for (const uint32_t i : decision.unreserve) adapters_.Unreserve(i);
  for (size_t k = 0; k < decision.evict.size(); ++k) {
    adapters_.Evict(decision.evict[k], k + decision.evict_ahead >= decision.evict.size());
  }
  // Those that waited for an evicted adapter go back to the line before its load.
  for (const uint32_t i : decision.evict) {
    for (const Order order : adapters_.WaitingOf(i)) {
      if (const auto it = ready_.find(order); it != ready_.end()) Park(*it->second);
    }
  }
  ReleaseSlotsNow();
  if (!decision.rows.empty()) {
    StepPlan plan;
    SentStep step;
    for (const RowDecision& row : decision.rows) {
      Sequence& sequence = *(row.admit ? view_waiting_ : view_running_)[row.index];
      if (row.admit) {
        Admit(sequence, row);
      } else if (row.new_pages > 0) {
        const std::vector<PageId> pages = *pages_.TakeKv(row.new_pages);
        sequence.pages.insert(sequence.pages.end(), pages.begin(), pages.end());
      }
      AddRow(plan, step, sequence, row);
    }
    SendStep(std::move(plan), std::move(step));
    decode_turn_ = decision.decode_turn;
  }
  for (const Decision::Reserve& r : decision.reserve) adapters_.Reserve(r.load, r.pages);
}

RowOutput GroupEngine::OutputOf(const Sequence& s, uint32_t query_len) const {
  const bool samples = s.computed + query_len == s.length();
  const bool prompt = s.prompt_token_bytes() > 0;
  if (samples) return prompt ? RowOutput::kTokenAndPromptLogprobs : RowOutput::kToken;
  return prompt ? RowOutput::kPromptLogprobs : RowOutput::kNone;
}

void GroupEngine::AddRow(StepPlan& plan, SentStep& step, Sequence& s, const RowDecision& decided) {
  const ResolvedRequest& resolved = s.request->resolved;
  if (!s.announced) {
    NewSequence fresh;
    fresh.slot = s.slot;
    fresh.num_prompt_tokens = resolved.prompt_tokens();
    fresh.num_tokens = s.length();
    fresh.sampling = resolved.sampling;
    fresh.seed = resolved.seed;
    fresh.sample_index = s.index;
    if (resolved.adapter) fresh.spans = {{0, 0, {{resolved.adapter->digest, 1.0f}}}};
    plan.new_sequences.push_back(std::move(fresh));
    s.announced = true;
  }
  plan.eager |= resolved.adapter && adapters_.IsLoading(resolved.adapter->digest);
  PlanRow row;
  row.slot = s.slot;
  row.query_len = decided.query_len;
  row.position = s.computed;
  if (!s.sampled) {
    for (uint32_t i = 0; i < decided.query_len; ++i) {
      row.tokens.push_back(s.token_at(s.computed + i));
    }
  }
  const uint32_t pages =
      PagesFor(s.computed + decided.query_len, config_.report.geometry.page_tokens);
  row.pages.assign(s.pages.begin() + s.pages_sent, s.pages.begin() + pages);
  s.pages_sent = pages;
  row.output = OutputOf(s, decided.query_len);
  const uint32_t prompt = resolved.prompt_tokens();
  if (s.computed < prompt) {
    config_.metrics->prompt_tokens_computed.Add(std::min(prompt - s.computed, decided.query_len));
  }
  s.computed += decided.query_len;
  ++s.rows_in_flight;
  if (row.output == RowOutput::kToken || row.output == RowOutput::kTokenAndPromptLogprobs) {
    ++s.samples_in_flight;
    s.sampled = true;
  }
  step.rows.push_back(
      {requests_.at(s.request->number.value), &s, s.slot, row.output, decided.query_len});
  step.tokens += decided.query_len;
  plan.rows.push_back(std::move(row));
}

void GroupEngine::SendStep(StepPlan plan, SentStep step) {
  step.eager = plan.eager;
  if (plan.eager) last_followed_ = step.rows[0].request->resolved.adapter->digest;
  step.id = Send(std::move(plan));
  for (const SentRow& row : step.rows) row.sequence->last_step = step.id;
  last_sent_ = config_.clock();
  if (steps_.empty()) step_since_ = last_sent_;
  steps_.push_back(std::move(step));
}

void GroupEngine::StepDone(SentStep step, Completion completion) {
  pages_.StepCompleted(step.id);
  adapters_.StepCompleted(step.id);
  for (const SentRow& row : step.rows) {
    --row.sequence->rows_in_flight;
    if (row.output == RowOutput::kToken || row.output == RowOutput::kTokenAndPromptLogprobs) {
      --row.sequence->samples_in_flight;
    }
  }
  size_t next = 0;
  for (const SentRow& row : step.rows) {
    if (row.request->closed) {
      ObserveCancel(*row.request);
      continue;
    }
    if (!completion.outcome.ok()) {
      CloseRequest(*row.request, StepFailure(step, *row.request, completion.outcome));
      continue;
    }
    if (row.output == RowOutput::kNone) continue;
    std::vector<RowResult>& results = completion.step.rows;
    // In plan order; those of closed requests are passed over.
    while (next < results.size() && results[next].slot != row.slot) ++next;
    if (next == results.size()) {
      CloseRequest(*row.request, MakeError(absl::StatusCode::kInternal, Reason::kInternal, "slot",
                                           absl::StrCat(row.slot.value), "no result came for it"));
      next = 0;
      continue;
    }
    ApplyResult(row, results[next++]);
  }
  if (step.rows.empty()) return;
  const std::lock_guard lock(status_mutex_);
  ++status_.steps;
  status_.last_step = {static_cast<uint32_t>(step.rows.size()), step.tokens,
                       completion.step.distinct_adapters, completion.step.duration_us};
  if (status_.steps == 1 ||
      status_.last_step.distinct_adapters > status_.widest_step.distinct_adapters ||
      (status_.last_step.distinct_adapters == status_.widest_step.distinct_adapters &&
       status_.last_step.rows > status_.widest_step.rows)) {
    status_.widest_step = status_.last_step;
  }
}

// An eager one fails as the Load does that all its rows follow. Else, whatever the group calls it:
// a plan that it refuses is no fault of the client.
absl::Status GroupEngine::StepFailure(const SentStep& step, const LiveRequest& request,
                                      const absl::Status& why) {
  if (step.eager) return LoadFailure(request.resolved.model, why);
  return MakeError(absl::StatusCode::kInternal, Reason::kInternal, "command",
                   absl::StrCat(step.id.value),
                   absl::StrCat("a step failed: ", std::string(why.message())));
}

void GroupEngine::ApplyResult(const SentRow& row, RowResult& result) {
  Sequence& s = *row.sequence;
  LiveRequest& request = *row.request;
  if (s.finished) return;
  if (result.nonfinite) {
    CloseRequest(request, MakeError(absl::StatusCode::kInternal, Reason::kNonfinite, "model",
                                    request.resolved.model, "logits were not finite"));
    return;
  }
  TokenBatch batch;
  batch.index = static_cast<int>(s.index);
  // Preempted with the row in flight: its prompt starts again, and so do the prompt's logprobs.
  if (!s.prompt_logprobs_sent && s.running) {
    std::move(result.prompt_logprobs.begin(), result.prompt_logprobs.end(),
              std::back_inserter(s.prompt_logprobs));
  }
  if (!result.tokens.empty() && s.running) {
    s.prompt_confirmed = true;
    if (request.resolved.sampling.prompt_logprobs >= 0 && s.index == 0 && !s.prompt_logprobs_sent) {
      batch.prompt_logprobs = std::exchange(s.prompt_logprobs, {});
      s.prompt_logprobs_sent = true;
    }
  }
  for (size_t i = 0; i < result.tokens.size(); ++i) {
    if (request.stopped[s.index]) {
      batch.finish_reason = FinishReason::kStop;
      break;
    }
    s.outputs.push_back(result.tokens[i]);
    batch.tokens.push_back(result.tokens[i]);
    if (i < result.logprobs.size()) batch.logprobs.push_back(std::move(result.logprobs[i]));
    if (!request.tokens_seen) {
      request.tokens_seen = true;
      config_.metrics->FirstToken(config_.clock() - request.arrived, request.heat);
    }
    const FinishOutcome finish =
        CheckFinish(request.resolved, static_cast<uint32_t>(s.outputs.size()), result.tokens[i]);
    if (finish.reason != FinishReason::kNone) {
      batch.finish_reason = finish.reason;
      batch.stop_match = finish.stop_match;
      break;  // what follows a stop is neither delivered, counted nor kept
    }
  }
  const bool finished = batch.finish_reason != FinishReason::kNone;
  if (!batch.tokens.empty() || !batch.prompt_logprobs.empty()) request.sink->Push(std::move(batch));
  if (s.prompt_confirmed) KeepPrompt(request);
  if (finished) FinishSequence(s);
}

}  // namespace rootstock
