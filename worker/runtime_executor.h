// What lora-worker's main joins: runtime, metrics and link.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "worker/link/executor.h"
#include "worker/parallel/communicator.h"
#include "worker/runtime/worker_metrics.h"
#include "worker/runtime/worker_runtime.h"

namespace rootstock {

// The link's commands to the runtime, what they did to the metrics. Borrows all. *Step thread
// only.*
class RuntimeExecutor : public CommandExecutor, private AdapterWork {
 public:
  RuntimeExecutor(WorkerRuntime& runtime, WorkerMetrics& metrics, const Communicator& communicator)
      : runtime_(runtime), metrics_(metrics), communicator_(communicator) {}
  absl::StatusOr<AttachReport> Attach(const Epoch& epoch, const GroupLimits& limits) override {
    absl::StatusOr<AttachReport> report = runtime_.Attach(epoch, limits);
    if (!report.ok()) return report;
    if (const auto memory = runtime_.memory()) metrics_.ObserveMemory(*memory);
    return report;
  }
  absl::StatusOr<std::optional<Completion>> Start(const Command& command) override {
    const OwnWork work(communicator_.stats());
    absl::StatusOr<std::optional<Completion>> completion = runtime_.Start(command);
    work_us_ = work.Microseconds();
    const auto* step = std::get_if<StepPlan>(&command.kind);
    if (step == nullptr || !completion.ok() || !completion->has_value()) return completion;
    if ((*completion)->outcome.ok()) Observe(!step->rows.empty());
    return completion;
  }
  absl::StatusOr<Completion> Finish() override {
    absl::StatusOr<Completion> completion = runtime_.Finish();
    if (completion.ok()) Observe(true);
    return completion;
  }
  size_t num_running() const override { return runtime_.num_running(); }
  void NotifyWhenDone(std::function<void()> done) override {
    runtime_.NotifyWhenDone(std::move(done));
  }
  uint64_t work_us() const override { return work_us_; }
  void ObserveWork(std::span<const uint64_t> work_us) override { metrics_.ObserveWork(work_us); }
  AdapterWork& adapters() override { return *this; }

 private:
  void NotifyWhenLoaded(std::function<void()> done) override {
    runtime_.loader().NotifyWhenDone(std::move(done));
  }
  std::optional<absl::Status> OutcomeOf(CommandId id) override { return runtime_.OutcomeOf(id); }
  bool WasInHost(CommandId id) override { return runtime_.loader().WasInHost(id); }
  absl::Status Settle(CommandId id, const absl::Status& outcome) override {
    const absl::Status settled = runtime_.Settle(id, outcome);
    metrics_.ObserveLoads(runtime_.loader().stats());
    return settled;
  }
  absl::Status AwaitLoads(const StepPlan& plan) override { return runtime_.AwaitLoads(plan); }
  std::vector<TierChange> HostTier() override { return OnHost(runtime_.loader().host().List()); }
  std::vector<TierChange> TakeHostChanges() override {
    return OnHost(runtime_.loader().host().TakeChanges());
  }

  static std::vector<TierChange> OnHost(const std::vector<HostChange>& changes) {
    std::vector<TierChange> out;
    for (const HostChange& change : changes) {
      out.push_back({{change.digest, Tier::kHost, change.bytes}, change.present});
    }
    return out;
  }
  void Observe(bool had_rows) {
    if (had_rows) metrics_.ObserveStep(runtime_.last_step());
    metrics_.ObserveTick(communicator_.stats());
    metrics_.ObserveLoads(runtime_.loader().stats());
  }

  WorkerRuntime& runtime_;
  WorkerMetrics& metrics_;
  const Communicator& communicator_;
  uint64_t work_us_ = 0;
};

}  // namespace rootstock
