#include "worker/runtime/worker_runtime.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/status.h"

namespace rootstock {
namespace {

// A row whose logits are not finite has no token; the step ahead goes on from this one until the
// coordinator hears of it.
constexpr int32_t kNoToken = -1;
constexpr int32_t kStandInToken = 0;

constexpr uint32_t kMinOutputs = 16;

uint64_t MicrosSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                               start)
      .count();
}

}  // namespace

WorkerRuntime::WorkerRuntime(StepModel& model, Communicator& communicator)
    : model_(model),
      communicator_(communicator),
      adapter_pages_(model.info().geometry.num_pages, false) {}

absl::StatusOr<AttachReport> WorkerRuntime::Attach(const Epoch& epoch, const GroupLimits& limits) {
  sequences_.clear();
  limits_ = limits;
  max_outputs_ = static_cast<int>(
      std::min(std::max(limits.max_num_seqs, kMinOutputs), limits.max_num_batched_tokens));
  const int context = model_.info().max_position;
  const int length =
      limits.max_model_len == 0 ? context : std::min<int>(context, limits.max_model_len);
  RETURN_IF_ERROR(
      model_.Prepare(static_cast<int>(limits.max_num_batched_tokens), max_outputs_, length));
  return AttachReport{epoch, model_.info().geometry, model_.info().compute_dtype, adapters_.List()};
}

PlanContext WorkerRuntime::Context() const {
  return {&sequences_, &adapters_, &adapter_pages_, model_.info(), limits_};
}

absl::StatusOr<Completion> WorkerRuntime::Execute(const Command& command) {
  Completion completion{command.id, absl::OkStatus(), {}};
  if (const auto* step = std::get_if<StepPlan>(&command.kind)) return Step(command.id, *step);
  if (const auto* load = std::get_if<LoadAdapter>(&command.kind)) completion.outcome = Load(*load);
  if (const auto* release = std::get_if<ReleaseSlots>(&command.kind)) Release(*release);
  // A prefetch concerns the node's cache only: worker/link.
  if (const auto* drop = std::get_if<DropAdapter>(&command.kind)) Drop(drop->digest);
  return completion;
}

void WorkerRuntime::Abandon(const Command& command) {
  if (const auto* load = std::get_if<LoadAdapter>(&command.kind)) Drop(load->digest);
}

absl::Status WorkerRuntime::Load(const LoadAdapter& load) {
  RETURN_IF_ERROR(CheckLoad(load, Context()));
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceAdapter> adapter, model_.Load(load));
  RETURN_IF_ERROR(adapters_.Add(load.digest, std::move(adapter)));
  MarkPages(load.pages, true);
  return absl::OkStatus();
}

// A slot whose first Step was refused was never made here: the others are freed all the same.
void WorkerRuntime::Release(const ReleaseSlots& release) {
  for (const SequenceSlot slot : release.slots) sequences_.erase(slot);
}

void WorkerRuntime::Drop(const Digest& digest) {
  const DeviceAdapter* adapter = adapters_.Find(digest);
  if (adapter == nullptr) return;
  MarkPages(adapter->pages(), false);
  adapters_.Drop(digest);
}

void WorkerRuntime::MarkPages(const std::vector<PageId>& pages, bool held) {
  for (const PageId page : pages) adapter_pages_[page.value] = held;
}

absl::StatusOr<Completion> WorkerRuntime::Step(CommandId id, const StepPlan& plan) {
  const auto start = std::chrono::steady_clock::now();
  if (absl::Status refused = CheckPlan(plan, Context()); !refused.ok()) {
    return Completion{id, std::move(refused), {}};
  }
  const std::vector<StepRow> rows = TakeRows(plan);
  Completion completion{id, absl::OkStatus(), {}};
  if (!rows.empty()) {
    const std::vector<StepBatch> batches =
        CutIntoBatches(rows, adapters_, model_.info().geometry.page_tokens, max_outputs_);
    std::vector<RowResult> results(rows.size());
    last_step_ = {};
    last_step_.requests = static_cast<uint32_t>(rows.size());
    last_step_.distinct_adapters = CountDistinctAdapters(batches);
    RETURN_IF_ERROR(RunBatches(batches, rows, results));
    RETURN_IF_ERROR(ShareTokens(rows, results));
    for (size_t i = 0; i < rows.size(); ++i) {
      last_step_.tokens += rows[i].plan->query_len;
      last_step_.prefill_rows += rows[i].plan->tokens.empty() ? 0 : 1;
      if (communicator_.rank() != 0 || rows[i].plan->output == RowOutput::kNone) continue;
      results[i].slot = rows[i].plan->slot;
      completion.step.rows.push_back(std::move(results[i]));
    }
    completion.step.distinct_adapters = last_step_.distinct_adapters;
  }
  completion.step.duration_us = MicrosSince(start);
  if (!rows.empty()) last_step_.duration_us = completion.step.duration_us;
  return completion;
}

// Nothing can fail from here on: the plan was checked.
std::vector<StepRow> WorkerRuntime::TakeRows(const StepPlan& plan) {
  for (const NewSequence& s : plan.new_sequences) {
    Sequence& sequence = sequences_.emplace(s.slot, Sequence(s)).first->second;
    for (size_t i = 0; i < s.cached_tokens.size(); ++i) {
      sequence.Count(static_cast<uint32_t>(i), s.cached_tokens[i]);
    }
  }
  std::vector<StepRow> rows;
  rows.reserve(plan.rows.size());
  for (const PlanRow& row : plan.rows) {
    Sequence& sequence = sequences_.at(row.slot);
    for (const PageId page : row.pages) sequence.page_table.push_back(page.value);
    StepRow& taken = rows.emplace_back(StepRow{&row, &sequence, row.tokens});
    if (taken.tokens.empty()) taken.tokens = {*sequence.sampled};
    for (uint32_t i = 0; i < row.query_len; ++i) sequence.Count(row.position + i, taken.tokens[i]);
    sequence.started = true;
    sequence.sampled.reset();
    sequence.num_computed = row.position + row.query_len;
  }
  return rows;
}

absl::Status WorkerRuntime::RunBatches(const std::vector<StepBatch>& batches,
                                       const std::vector<StepRow>& rows,
                                       std::vector<RowResult>& results) {
  const size_t vocab = model_.info().vocab_size;
  if (communicator_.rank() == 0) {
    // The first token of a chunk was predicted by the chunk before.
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::vector<float> logits = std::exchange(rows[i].sequence->carried_logits, {});
      if (rows[i].wants_prompt_logprobs() && !logits.empty()) {
        results[i].prompt_logprobs.push_back(sampler_.Logprob(
            logits, rows[i].tokens[0], rows[i].sequence->spec.sampling.prompt_logprobs));
      }
    }
  }
  for (const StepBatch& batch : batches) {
    ASSIGN_OR_RETURN(const std::span<const float> logits, model_.Forward(batch.forward));
    last_step_.lora_shrink.Add(model_.last_forward().ops.lora_shrink);
    last_step_.lora_expand.Add(model_.last_forward().ops.lora_expand);
    if (communicator_.rank() != 0) continue;
    for (size_t i = 0; i < batch.outputs.size(); ++i) {
      const OutputRef& output = batch.outputs[i];
      TakeLogits(logits.subspan(i * vocab, vocab), rows[output.row], output.token,
                 results[output.row]);
    }
  }
  return absl::OkStatus();
}

void WorkerRuntime::TakeLogits(std::span<const float> logits, const StepRow& row, uint32_t token,
                               RowResult& result) {
  const NewSequence& spec = row.sequence->spec;
  const uint32_t next = row.plan->position + token + 1;
  const bool last = token + 1 == row.plan->query_len;
  result.nonfinite |= !Sampler::AllFinite(logits);
  if (row.wants_prompt_logprobs() && next < spec.num_prompt_tokens) {
    if (last) {
      row.sequence->carried_logits.assign(logits.begin(), logits.end());
    } else {
      result.prompt_logprobs.push_back(
          sampler_.Logprob(logits, row.tokens[token + 1], spec.sampling.prompt_logprobs));
    }
  }
  if (!last || !row.samples()) return;
  const int32_t sampled = sampler_.Sample(logits, {.params = &spec.sampling,
                                                   .counts = &row.sequence->counts,
                                                   .seed = spec.seed,
                                                   .sample_index = spec.sample_index,
                                                   .position = next,
                                                   .num_outputs = next - spec.num_prompt_tokens});
  if (sampled == kNoToken) {
    result.nonfinite = true;
    return;
  }
  result.tokens = {sampled};
  if (spec.sampling.logprobs >= 0) {
    result.logprobs = {sampler_.Logprob(logits, sampled, spec.sampling.logprobs)};
  }
}

absl::Status WorkerRuntime::ShareTokens(const std::vector<StepRow>& rows,
                                        const std::vector<RowResult>& results) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].samples()) continue;
    tokens.push_back(results[i].tokens.empty() ? kNoToken : results[i].tokens[0]);
  }
  if (tokens.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(communicator_.Broadcast(std::as_writable_bytes(std::span(tokens)), 0));
  auto next = tokens.begin();
  for (const StepRow& row : rows) {
    if (!row.samples()) continue;
    const int32_t token = *next++;
    row.sequence->sampled = token == kNoToken ? kStandInToken : token;
    if (token != kNoToken) row.sequence->Count(row.sequence->num_computed, token);
  }
  return absl::OkStatus();
}

}  // namespace rootstock
