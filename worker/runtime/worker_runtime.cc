#include "worker/runtime/worker_runtime.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace rootstock {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kNoToken = -1;  // of a row whose logits are not finite
constexpr uint32_t kMinOutputs = 16;

uint64_t Micros(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

// The rest of a chunk's rows of logits are scored against the prompt.
PendingOutput UseOf(const StepRow& row, const OutputRef& ref) {
  using Use = PendingOutput::Use;
  if (ref.token + 1 < row.plan->query_len) return {ref.row, Use::kPromptLogprob};
  const uint32_t next = row.plan->position + ref.token + 1;
  const bool inside = row.wants_prompt_logprobs() && next < row.sequence->spec.num_prompt_tokens;
  return {ref.row, inside ? Use::kCarry : Use::kSample};
}

SampleOrder OrderOf(const StepRow& row, const OutputRef& ref, PendingOutput::Use use) {
  const NewSequence& spec = row.sequence->spec;
  SampleOrder order;
  order.params = &spec.sampling;
  order.slot = spec.slot.value;
  order.seed = spec.seed;
  order.sample_index = spec.sample_index;
  order.position = row.plan->position + ref.token + 1;
  switch (use) {
    case PendingOutput::Use::kSample:
      order.num_outputs = order.position - spec.num_prompt_tokens;
      order.num_top = spec.sampling.logprobs;
      break;
    case PendingOutput::Use::kPromptLogprob:
      order.given = row.tokens[ref.token + 1];
      order.num_top = spec.sampling.prompt_logprobs;
      break;
    case PendingOutput::Use::kCarry:
      order.keep_logits = true;
      break;
  }
  return order;
}

}  // namespace

WorkerRuntime::WorkerRuntime(StepModel& model, Communicator& communicator)
    : model_(model), communicator_(communicator) {}

absl::StatusOr<AttachReport> WorkerRuntime::Attach(const Epoch& epoch, const GroupLimits& limits) {
  while (!running_.empty()) RETURN_IF_ERROR(Finish().status());
  RETURN_IF_ERROR(model_.Wait(model_.Mark()));
  RETURN_IF_ERROR(ForgetLoads());
  sequences_.clear();
  limits_ = limits;
  max_outputs_ = static_cast<int>(
      std::min(std::max(limits.max_num_seqs, kMinOutputs), limits.max_num_batched_tokens));
  const int context = model_.info().max_position;
  const int length =
      limits.max_model_len == 0 ? context : std::min<int>(context, limits.max_model_len);
  const int seqs = static_cast<int>(limits.max_num_seqs);
  RETURN_IF_ERROR(model_.Prepare(
      {static_cast<int>(limits.max_num_batched_tokens), seqs, max_outputs_, length, seqs},
      static_cast<int>(limits.max_logprobs)));
  adapter_pages_.resize(model_.info().geometry.num_pages);
  AttachReport report{epoch, model_.info().geometry, model_.info().compute_dtype, adapters_.List()};
  report.loads_by_layer = true;
  return report;
}

PlanContext WorkerRuntime::Context() const {
  return {&sequences_, &adapters_, &loading_, &adapter_pages_, model_.info(), limits_};
}

absl::StatusOr<std::optional<Completion>> WorkerRuntime::Start(const Command& command) {
  Completion completion{command.id, absl::OkStatus(), {}};
  if (const auto* step = std::get_if<StepPlan>(&command.kind)) return Step(command.id, *step);
  if (const auto* prefetch = std::get_if<PrefetchAdapter>(&command.kind)) {
    model_.loader().Stage(command.id, *prefetch);
    return std::nullopt;
  }
  if (const auto* load = std::get_if<LoadAdapter>(&command.kind)) {
    completion.outcome = Load(command.id, *load);
    if (completion.outcome.ok()) return std::nullopt;
  }
  if (const auto* release = std::get_if<ReleaseSlots>(&command.kind)) Release(*release);
  if (const auto* drop = std::get_if<DropAdapter>(&command.kind)) {
    const absl::StatusOr<TierBytes> freed = Drop(*drop);
    completion.outcome = freed.status();
    if (freed.ok()) completion.freed = *freed;
  }
  if (const auto* pin = std::get_if<PinAdapter>(&command.kind);
      pin && pin->tiers.has(Tier::kHost)) {
    model_.loader().host().Pin(pin->digest, pin->pinned);
  }
  return completion;
}

// A slot whose first Step was refused was never made here: the others are freed all the same.
void WorkerRuntime::Release(const ReleaseSlots& release) {
  for (const SequenceSlot slot : release.slots) sequences_.erase(slot);
}

absl::StatusOr<std::optional<Completion>> WorkerRuntime::Step(CommandId id, const StepPlan& plan) {
  const Clock::time_point start = Clock::now();
  absl::Status refused = CheckPlan(plan, Context());
  if (refused.ok()) refused = AwaitLoads(plan);
  if (!refused.ok()) return Completion{id, std::move(refused), {}};
  const std::vector<StepRow> rows = TakeRows(plan);
  if (rows.empty()) return Completion{id, absl::OkStatus(), {{}, Micros(Clock::now() - start)}};
  PendingStep step = MakePending(id, rows);
  step.start = start;
  TakeCarriedLogits(rows, step);
  std::vector<StepBatch> batches =
      CutIntoBatches(rows, adapters_, model_.info().geometry.page_tokens, max_outputs_);
  for (StepBatch& batch : batches) batch.forward.before_layer = FollowLoads(plan);
  step.facts.distinct_adapters = CountDistinctAdapters(batches);
  // Scoring a prompt takes several batches, and leaves logits for the next chunk: one step alone.
  const bool scores = std::any_of(rows.begin(), rows.end(),
                                  [](const StepRow& row) { return row.wants_prompt_logprobs(); });
  if (scores) {
    for (PendingStep& earlier : running_) RETURN_IF_ERROR(CollectOutcomes(earlier));
  }
  for (const StepBatch& batch : batches) {
    RETURN_IF_ERROR(Enqueue(batch, rows, step));
    if (scores) RETURN_IF_ERROR(CollectOutcomes(step));
  }
  step.mark = model_.Mark();
  communicator_.Watch();
  running_.push_back(std::move(step));
  if (model_.asynchronous()) return std::nullopt;
  ASSIGN_OR_RETURN(Completion completion, Finish());
  return completion;
}

PendingStep WorkerRuntime::MakePending(CommandId id, const std::vector<StepRow>& rows) const {
  PendingStep step;
  step.id = id;
  step.facts.requests = static_cast<uint32_t>(rows.size());
  for (uint32_t i = 0; i < rows.size(); ++i) {
    step.facts.tokens += rows[i].plan->query_len;
    step.facts.prefill_rows += rows[i].plan->tokens.empty() ? 0 : 1;
    step.results.emplace_back().slot = rows[i].plan->slot;
    step.wanted.push_back(rows[i].plan->output);
  }
  return step;
}

// Nothing can fail from here on: the plan was checked.
std::vector<StepRow> WorkerRuntime::TakeRows(const StepPlan& plan) {
  for (const NewSequence& s : plan.new_sequences) {
    Sequence& sequence = sequences_.emplace(s.slot, Sequence(s)).first->second;
    model_.sampler().Begin(s.slot.value, NeedsCounts(s.sampling));
    CountTokens(sequence, 0, s.cached_tokens);
  }
  std::vector<StepRow> rows;
  rows.reserve(plan.rows.size());
  for (const PlanRow& row : plan.rows) {
    Sequence& sequence = sequences_.at(row.slot);
    for (const PageId page : row.pages) sequence.page_table.push_back(page.value);
    StepRow& taken = rows.emplace_back(StepRow{&row, &sequence, row.tokens});
    CountTokens(sequence, row.position, row.tokens);
    if (taken.tokens.empty()) taken.tokens = {LastTokenOf(row.slot.value)};
    sequence.started = true;
    sequence.num_computed = row.position + row.query_len;
    sequence.has_sampled = taken.samples();
    // The sampler counts what it samples.
    if (taken.samples()) sequence.num_counted = sequence.num_computed + 1;
  }
  return rows;
}

// tokens [n] from `position` on, those counted already left out.
void WorkerRuntime::CountTokens(Sequence& sequence, uint32_t position,
                                std::span<const int32_t> tokens) {
  const uint32_t end = position + static_cast<uint32_t>(tokens.size());
  const uint32_t begin = std::min(std::max(position, sequence.num_counted), end);
  const uint32_t outputs = std::clamp(sequence.spec.num_prompt_tokens, begin, end);
  const uint32_t slot = sequence.spec.slot.value;
  model_.sampler().Count(slot, tokens.subspan(begin - position, outputs - begin), false);
  model_.sampler().Count(slot, tokens.subspan(outputs - position), true);
  sequence.num_counted = std::max(sequence.num_counted, end);
}

void WorkerRuntime::TakeCarriedLogits(const std::vector<StepRow>& rows, PendingStep& step) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<float> logits = std::exchange(rows[i].sequence->carried_logits, {});
    if (!rows[i].wants_prompt_logprobs() || logits.empty()) continue;
    step.results[i].prompt_logprobs.push_back(
        LogprobOf(logits, rows[i].tokens[0], rows[i].sequence->spec.sampling.prompt_logprobs));
  }
}

absl::Status WorkerRuntime::Enqueue(const StepBatch& batch, const std::vector<StepRow>& rows,
                                    PendingStep& step) {
  ASSIGN_OR_RETURN(const float* logits, model_.Forward(batch.forward));
  step.facts.lora_shrink.Add(model_.last_forward().ops.lora_shrink);
  step.facts.lora_expand.Add(model_.last_forward().ops.lora_expand);
  step.outputs.clear();
  if (batch.outputs.empty()) return absl::OkStatus();
  std::vector<SampleOrder> orders;
  for (const OutputRef& ref : batch.outputs) {
    const PendingOutput output = UseOf(rows[ref.row], ref);
    if (communicator_.rank() == 0) step.outputs.push_back(output);
    orders.push_back(OrderOf(rows[ref.row], ref, output.use));
  }
  if (communicator_.rank() == 0) RETURN_IF_ERROR(model_.sampler().Sample(logits, orders));
  return ShareTokens(orders);
}

absl::Status WorkerRuntime::CollectOutcomes(PendingStep& step) {
  const std::vector<PendingOutput> outputs = std::exchange(step.outputs, {});
  if (outputs.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::span<const SampleOutcome> outcomes, model_.sampler().Collect());
  for (size_t i = 0; i < outputs.size(); ++i) TakeOutcome(outputs[i], outcomes[i], step);
  return absl::OkStatus();
}

void WorkerRuntime::TakeOutcome(const PendingOutput& output, const SampleOutcome& outcome,
                                PendingStep& step) {
  RowResult& result = step.results[output.row];
  result.nonfinite |= outcome.nonfinite;
  switch (output.use) {
    case PendingOutput::Use::kPromptLogprob:
      result.prompt_logprobs.push_back(outcome.logprob);
      break;
    case PendingOutput::Use::kCarry:
      if (const auto sequence = sequences_.find(result.slot); sequence != sequences_.end()) {
        sequence->second.carried_logits = outcome.logits;
      }
      break;
    case PendingOutput::Use::kSample:
      if (outcome.token == kNoToken) break;
      result.tokens = {outcome.token};
      if (outcome.logprob.rank > 0) result.logprobs = {outcome.logprob};
      break;
  }
}

absl::StatusOr<Completion> WorkerRuntime::Finish() {
  PendingStep step = std::move(running_.front());
  running_.pop_front();
  RETURN_IF_ERROR(model_.Wait(step.mark));
  RETURN_IF_ERROR(CollectOutcomes(step));
  RETURN_IF_ERROR(communicator_.Health());  // else nothing of it is delivered
  const Clock::time_point now = Clock::now();
  // A step that was enqueued behind another began when that one ended.
  step.facts.duration_us = Micros(now - std::max(step.start, finished_));
  step.facts.span = model_.SpanOf(step.mark);
  finished_ = now;
  last_step_ = step.facts;
  Completion completion{step.id, absl::OkStatus(), {}};
  completion.step.duration_us = step.facts.duration_us;
  completion.step.distinct_adapters = step.facts.distinct_adapters;
  if (communicator_.rank() != 0) return completion;
  for (size_t i = 0; i < step.results.size(); ++i) {
    if (step.wanted[i] == RowOutput::kNone) continue;
    completion.step.rows.push_back(std::move(step.results[i]));
  }
  return completion;
}

// In the order of the step: slots may be released, and taken again, before it has run.
absl::Status WorkerRuntime::ShareTokens(std::span<const SampleOrder> orders) {
  const bool sampling = std::any_of(orders.begin(), orders.end(),
                                    [](const SampleOrder& order) { return order.samples(); });
  if (communicator_.size() == 1 || !sampling) return absl::OkStatus();
  RETURN_IF_ERROR(
      communicator_.Broadcast(model_.sampler().chosen(), orders.size() * sizeof(int32_t), 0));
  return communicator_.rank() == 0 ? absl::OkStatus() : model_.sampler().Follow(orders);
}

}  // namespace rootstock
