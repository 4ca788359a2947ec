// Executes the commands of a group on one tp_rank.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "worker/lora/adapter_table.h"
#include "worker/parallel/communicator.h"
#include "worker/runtime/batch_plan.h"
#include "worker/runtime/pending_step.h"
#include "worker/runtime/plan_check.h"
#include "worker/runtime/sequence.h"
#include "worker/runtime/step_model.h"

namespace rootstock {

// Every tp_rank gets the same commands in the same order and holds the same state: slots, page
// tables, resident adapters. tp_rank 0 samples and broadcasts the ids. *Step thread only.*
class WorkerRuntime {
 public:
  // Borrowed; both outlive the runtime.
  WorkerRuntime(StepModel& model, Communicator& communicator);

  // Waits for what runs, then forgets all sequences; adapters stay. An error (no memory for the
  // limits) ends the process.
  absl::StatusOr<AttachReport> Attach(const Epoch& epoch, const GroupLimits& limits);

  // A command that this rank refuses completes with an error and changes nothing. The outer error
  // means that the group is broken: leave and end the process. Rows of the result on tp_rank 0.
  // Nothing is returned for what is left running: a Step of an asynchronous model, which Finish
  // completes, and a Prefetch to_host or a Load, which Settle completes.
  absl::StatusOr<std::optional<Completion>> Start(const Command& command);
  // Waits for the oldest Step that runs. Call it only while num_running() > 0.
  absl::StatusOr<Completion> Finish();
  size_t num_running() const { return running_.size(); }
  // Calls `done`, on any thread, when the Step that was started last has run.
  void NotifyWhenDone(std::function<void()> done) { model_.NotifyWhenDone(std::move(done)); }

  // Before an eager step: waits until it may follow the copies of the loads that it names. An error
  // of one of them is an outcome of the step, which changes nothing.
  absl::Status AwaitLoads(const StepPlan& plan);
  // Of a Prefetch or Load that was left running; nothing while it runs.
  std::optional<absl::Status> OutcomeOf(CommandId id) { return model_.loader().OutcomeOf(id); }
  // Every tp_rank's has ended, and `outcome` is their conjunction: what one failed all have failed.
  absl::Status Settle(CommandId id, const absl::Status& outcome);
  AdapterLoader& loader() { return model_.loader(); }

  // Of the Step that completed last.
  const StepFacts& last_step() const { return last_step_; }
  std::optional<DeviceMemoryUse> memory() { return model_.memory(); }
  size_t num_sequences() const { return sequences_.size(); }
  size_t num_adapters() const { return adapters_.size(); }

 private:
  PlanContext Context() const;
  absl::StatusOr<std::optional<Completion>> Step(CommandId id, const StepPlan& plan);
  absl::Status Load(CommandId id, const LoadAdapter& load);
  void Release(const ReleaseSlots& release);
  absl::StatusOr<TierBytes> Drop(const DropAdapter& drop);
  absl::Status ForgetLoads();
  // Of the loads that the plan's rows run with.
  std::function<absl::Status(int)> FollowLoads(const StepPlan& plan);
  void MarkPages(const std::vector<PageId>& pages, bool held);

  std::vector<StepRow> TakeRows(const StepPlan& plan);
  void CountTokens(Sequence& sequence, uint32_t position, std::span<const int32_t> tokens);
  PendingStep MakePending(CommandId id, const std::vector<StepRow>& rows) const;
  // tp_rank 0: the first token of a chunk was predicted by the chunk before.
  void TakeCarriedLogits(const std::vector<StepRow>& rows, PendingStep& step);
  absl::Status Enqueue(const StepBatch& batch, const std::vector<StepRow>& rows, PendingStep& step);
  // The outcomes of the orders of `step` that were enqueued last, on tp_rank 0.
  absl::Status CollectOutcomes(PendingStep& step);
  void TakeOutcome(const PendingOutput& output, const SampleOutcome& outcome, PendingStep& step);
  // Every rank ends with the ids that tp_rank 0 samples.
  absl::Status ShareTokens(std::span<const SampleOrder> orders);

  StepModel& model_;
  Communicator& communicator_;
  GroupLimits limits_;
  int max_outputs_ = 1;
  SequenceTable sequences_;
  AdapterTable adapters_;
  LoadingTable loading_;
  std::vector<bool> adapter_pages_;  // [num_pages], from the first Attach
  std::deque<PendingStep> running_;
  std::chrono::steady_clock::time_point finished_;  // when the step before ended
  StepFacts last_step_;
};

}  // namespace rootstock
