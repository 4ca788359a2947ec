// METRICS.md's worker families.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "common/metrics/metrics.h"
#include "worker/parallel/collective_stats.h"
#include "worker/parallel/group_loss.h"
#include "worker/runtime/worker_runtime.h"

namespace rootstock {

struct WorkerFacts {
  std::string device;  // UUID of a GPU; empty on the CPU
  std::string node;
  std::string group;
  std::string product;  // name and version of this build
};

// Fed by the step thread after each command. *Step thread only, but for OnLoss.*
class WorkerMetrics {
 public:
  WorkerMetrics(Metrics& metrics, int tp_rank, const WorkerFacts& facts);
  // After a Step that had rows.
  void ObserveStep(const StepFacts& step);
  // After a step with rows: each rank's own work. tp_rank 0 shows how far they lie apart.
  void ObserveWork(std::span<const uint64_t> work_us);
  // After an attach, of a rank on a GPU.
  void ObserveMemory(const DeviceMemoryUse& use);
  // After any step or tick: what collectives did since the last call.
  void ObserveTick(const CollectiveStats& stats);
  // What loads did since the last call.
  void ObserveLoads(const LoadStats& stats);
  // For whom notices that the group is lost: counts it, on a GPU, and calls `end`, which may not
  // return. *Thread-safe.*
  std::function<void(const GroupLoss&)> OnLoss(
      std::function<void(const std::string& why)> end) const;

 private:
  void CountLoss(const GroupLoss& loss) const;
  void MakeLossFamilies(Metrics& metrics);
  void CountLora(const char* kernel, const LoraKernelStats& stats);

  const std::string tp_rank_;
  const Family<Histogram> step_duration_, batch_tokens_, batch_requests_, distinct_adapters_;
  const Family<Counter> lora_segments_;
  std::optional<Family<Counter>> lora_kernel_seconds_;  // not of a GPU
  const Family<Counter> collective_seconds_, collective_calls_, collective_bytes_;
  const Family<Counter> copy_bytes_, copy_stall_;
  const Family<Gauge> last_step_;
  std::optional<Family<Histogram>> skew_;                                // tp_rank 0
  std::optional<Family<Gauge>> memory_;                                  // on a GPU
  std::optional<Family<Counter>> step_busy_, step_gap_;                  // likewise
  std::optional<Family<Counter>> nccl_aborts_, nccl_errors_, watchdog_;  // likewise
  std::array<CollectiveCounters, kAllCollectiveOps.size()> seen_{};
  LoadStats loads_seen_;
};

}  // namespace rootstock
