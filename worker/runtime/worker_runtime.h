// Executes the commands of a group on one tp_rank.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "worker/lora/adapter_table.h"
#include "worker/parallel/communicator.h"
#include "worker/runtime/batch_plan.h"
#include "worker/runtime/plan_check.h"
#include "worker/runtime/sequence.h"
#include "worker/runtime/step_model.h"

namespace rootstock {

// Of the last StepPlan with rows, for metrics.
struct StepFacts {
  uint32_t tokens = 0;
  uint32_t requests = 0;
  uint32_t prefill_rows = 0;  // with explicit tokens
  uint32_t distinct_adapters = 0;
  uint64_t duration_us = 0;
  LoraKernelStats lora_shrink, lora_expand;  // of all its forward passes
};

// Every tp_rank gets the same commands in the same order and holds the same state: slots, page
// tables, resident adapters. tp_rank 0 samples and broadcasts the ids. *Step thread only.*
class WorkerRuntime {
 public:
  // Borrowed; both outlive the runtime.
  WorkerRuntime(StepModel& model, Communicator& communicator);

  // Forgets all sequences; adapters stay. An error (no memory for the limits) ends the process.
  absl::StatusOr<AttachReport> Attach(const Epoch& epoch, const GroupLimits& limits);

  // A command that this rank refuses completes with an error and changes nothing. The outer error
  // means that the group is broken: leave and end the process. Rows of the result on tp_rank 0.
  absl::StatusOr<Completion> Execute(const Command& command);

  // Another tp_rank failed a command that succeeded here: its effects go.
  void Abandon(const Command& command);

  const StepFacts& last_step() const { return last_step_; }
  size_t num_sequences() const { return sequences_.size(); }
  size_t num_adapters() const { return adapters_.size(); }

 private:
  PlanContext Context() const;
  absl::StatusOr<Completion> Step(CommandId id, const StepPlan& plan);
  absl::Status Load(const LoadAdapter& load);
  void Release(const ReleaseSlots& release);
  void Drop(const Digest& digest);
  void MarkPages(const std::vector<PageId>& pages, bool held);

  std::vector<StepRow> TakeRows(const StepPlan& plan);
  absl::Status RunBatches(const std::vector<StepBatch>& batches, const std::vector<StepRow>& rows,
                          std::vector<RowResult>& results);
  // tp_rank 0: looks at one row of logits.
  void TakeLogits(std::span<const float> logits, const StepRow& row, uint32_t token,
                  RowResult& result);
  // Every rank ends with the ids that tp_rank 0 sampled.
  absl::Status ShareTokens(const std::vector<StepRow>& rows, const std::vector<RowResult>& results);

  StepModel& model_;
  Communicator& communicator_;
  GroupLimits limits_;
  int max_outputs_ = 1;
  SequenceTable sequences_;
  AdapterTable adapters_;
  std::vector<bool> adapter_pages_;  // [num_pages]
  Sampler sampler_;
  StepFacts last_step_;
};

}  // namespace rootstock
