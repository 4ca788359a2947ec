// StepRig: what it runs.
#include <algorithm>
#include <chrono>

#include "common/base/status.h"
#include "tests/perf/step_rig.h"

namespace rootstock {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmSteps = 3;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

std::vector<int32_t> StepRig::RandomIds(int count) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random_() % spec_.vocab_size);
  return ids;
}

void StepRig::AppendRow(int row, int position, std::span<const int32_t> ids, const StepCase& c,
                        ForwardBatch& batch) const {
  const int begin = static_cast<int>(batch.token_ids.size());
  const int count = static_cast<int>(ids.size());
  for (int i = 0; i < count; ++i) {
    batch.token_ids.push_back(ids[i]);
    batch.positions.push_back(position + i);
  }
  const size_t pages = (position + count + geometry_.page_tokens - 1) / geometry_.page_tokens;
  batch.rows.push_back({begin, count, position, std::span(rows_[row].pages).first(pages)});
  if (c.adapters == 0) return;
  const int adapter = row % c.adapters;
  if (c.lora_rank > 0 && LoraRankOf(adapter) != c.lora_rank) return;
  batch.segments.push_back({begin, begin + count, adapters_[adapter].get(), 1.0f});
}

absl::Status StepRig::Sample(const float* logits, const std::vector<uint32_t>& rows) {
  std::vector<SampleOrder> orders(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    orders[i].params = &greedy_;
    orders[i].slot = rows[i];
  }
  if (tp_rank_ == 0) RETURN_IF_ERROR(backend_.sampler->Sample(logits, orders));
  if (communicator_->size() > 1) {
    RETURN_IF_ERROR(
        communicator_->Broadcast(backend_.sampler->chosen(), rows.size() * sizeof(int32_t), 0));
    if (tp_rank_ != 0) RETURN_IF_ERROR(backend_.sampler->Follow(orders));
  }
  marks_.push_back(backend_.device->Mark());
  communicator_->Watch();
  return absl::OkStatus();
}

absl::StatusOr<std::span<const SampleOutcome>> StepRig::Finish() {
  const uint64_t mark = marks_.front();
  marks_.pop_front();
  if (tp_rank_ == 0) return backend_.sampler->Collect();
  RETURN_IF_ERROR(backend_.device->Wait(mark));
  return std::span<const SampleOutcome>();
}

absl::StatusOr<double> StepRig::Prefill(int adapters) {
  const Clock::time_point start = Clock::now();
  // Chunks hold several rows while there is room, as a scheduler does.
  ForwardBatch batch;
  const auto run = [&]() -> absl::Status {
    if (batch.token_ids.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(model_->Forward(batch).status());
    batch = {};
    return absl::OkStatus();
  };
  for (int row = 0; row < options_.rows; ++row) {
    for (int at = 0; at < options_.context;) {
      const int room = kPrefillTokens - static_cast<int>(batch.token_ids.size());
      const int count = std::min(room, options_.context - at);
      AppendRow(row, at, RandomIds(count), {options_.rows, adapters}, batch);
      at += count;
      if (at == options_.context) {
        batch.logit_tokens.push_back(static_cast<int32_t>(batch.token_ids.size()) - 1);
      }
      if (static_cast<int>(batch.token_ids.size()) == kPrefillTokens) RETURN_IF_ERROR(run());
    }
  }
  RETURN_IF_ERROR(run());
  RETURN_IF_ERROR(backend_.device->Wait(backend_.device->Mark()));
  return SecondsSince(start);
}

absl::Status StepRig::Start(const StepCase& c, int step) {
  ForwardBatch batch;
  std::vector<uint32_t> rows;
  for (int row = 0; row < c.rows; ++row) {
    const int32_t last = LastTokenOf(row);
    AppendRow(row, options_.context + step, {&last, 1}, c, batch);
    batch.logit_tokens.push_back(row);
    rows.push_back(row);
  }
  ASSIGN_OR_RETURN(const float* logits, model_->Forward(batch));
  return Sample(logits, rows);
}

absl::StatusOr<std::vector<double>> StepRig::Decode(const StepCase& c) {
  std::vector<double> seconds;
  RETURN_IF_ERROR(Start(c, 0));
  Clock::time_point before = Clock::now();
  for (int step = 1; step <= options_.steps; ++step) {
    // On the host's processor a step has run when it was started.
    if (!backend_.asynchronous) RETURN_IF_ERROR(Finish().status());
    if (!backend_.asynchronous) before = Clock::now();
    if (step < options_.steps) RETURN_IF_ERROR(Start(c, step));
    if (backend_.asynchronous) RETURN_IF_ERROR(Finish().status());
    const Clock::time_point now = Clock::now();
    if (step >= kWarmSteps && step < options_.steps) {
      seconds.push_back(std::chrono::duration<double>(now - before).count());
    }
    before = now;
  }
  return seconds;
}

absl::StatusOr<double> StepRig::DecodeUnwatched(const StepCase& c) {
  const auto run = [&](int steps) -> absl::StatusOr<double> {
    const Clock::time_point start = Clock::now();
    for (int step = 0; step < steps; ++step) {
      ForwardBatch batch;
      for (int row = 0; row < c.rows; ++row) {
        const int32_t last = LastTokenOf(row);
        AppendRow(row, options_.context + step, {&last, 1}, c, batch);
        batch.logit_tokens.push_back(row);
      }
      RETURN_IF_ERROR(model_->Forward(batch).status());
    }
    RETURN_IF_ERROR(backend_.device->Wait(backend_.device->Mark()));
    return SecondsSince(start);
  };
  ASSIGN_OR_RETURN(const double few, run(4));
  ASSIGN_OR_RETURN(const double many, run(options_.steps));
  return (many - few) / (options_.steps - 4);
}

absl::StatusOr<CollectiveStats> StepRig::CollectivesOf(const StepCase& c) {
  const CollectiveStats before = communicator_->stats();
  RETURN_IF_ERROR(Start(c, 0));
  RETURN_IF_ERROR(Finish().status());
  return communicator_->stats().Since(before);
}

absl::StatusOr<StepRig::AfterLoad> StepRig::StepAfterLoad(const StepCase& c) {
  const auto alone = [&]() -> absl::StatusOr<double> {
    RETURN_IF_ERROR(backend_.device->Wait(backend_.device->Mark()));
    // A step that names an adapter is sent when all ranks have loaded it.
    RETURN_IF_ERROR(communicator_->Agree(absl::OkStatus()));
    const Clock::time_point start = Clock::now();
    RETURN_IF_ERROR(Start(c, 0));
    RETURN_IF_ERROR(Finish().status());
    return SecondsSince(start);
  };
  for (int i = 0; i < kWarmSteps; ++i) RETURN_IF_ERROR(alone().status());
  AfterLoad out;
  ASSIGN_OR_RETURN(out.ordinary, alone());
  adapters_[0].reset();
  RETURN_IF_ERROR(options_.lora_ranks.empty() ? LoadFile(0) : MakeRandomAdapter(0));
  ASSIGN_OR_RETURN(out.first, alone());
  return out;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> StepRig::Continue(
    const std::vector<std::vector<int32_t>>& prompts, int adapters) {
  const StepCase c{static_cast<int>(prompts.size()), adapters};
  std::vector<std::vector<int32_t>> out(prompts.size());
  const auto collect = [&](const std::vector<uint32_t>& rows) -> absl::Status {
    ASSIGN_OR_RETURN(const auto outcomes, Finish());
    for (size_t i = 0; i < outcomes.size(); ++i) out[rows[i]].push_back(outcomes[i].token);
    return absl::OkStatus();
  };
  for (uint32_t row = 0; row < prompts.size(); ++row) {
    ForwardBatch batch;
    AppendRow(static_cast<int>(row), 0, prompts[row], c, batch);
    batch.logit_tokens.push_back(static_cast<int32_t>(prompts[row].size()) - 1);
    ASSIGN_OR_RETURN(const float* logits, model_->Forward(batch));
    RETURN_IF_ERROR(Sample(logits, {row}));
    RETURN_IF_ERROR(collect({row}));
  }
  std::vector<uint32_t> all(prompts.size());
  for (uint32_t row = 0; row < all.size(); ++row) all[row] = row;
  for (int step = 0; step + 1 < options_.steps; ++step) {
    RETURN_IF_ERROR(Start(c, step));
    RETURN_IF_ERROR(collect(all));
  }
  return out;
}

}  // namespace rootstock
