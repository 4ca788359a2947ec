// What lora-worker's main joins: runtime, metrics and link.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "worker/link/executor.h"
#include "worker/parallel/communicator.h"
#include "worker/runtime/worker_metrics.h"
#include "worker/runtime/worker_runtime.h"

namespace rootstock {

// The link's commands to the runtime, what they did to the metrics. Borrows all. *Step thread
// only.*
class RuntimeExecutor : public CommandExecutor {
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
  void Abandon(const Command& command) override { runtime_.Abandon(command); }

 private:
  void Observe(bool had_rows) {
    if (had_rows) metrics_.ObserveStep(runtime_.last_step());
    metrics_.ObserveTick(communicator_.stats());
  }

  WorkerRuntime& runtime_;
  WorkerMetrics& metrics_;
  const Communicator& communicator_;
  uint64_t work_us_ = 0;
};

}  // namespace rootstock
