// What the link hands commands to; worker/runtime's end is wired up in main.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"

namespace rootstock {

// What a tp_rank does for adapters beside its steps. *Step thread only.*
class AdapterWork {
 public:
  virtual ~AdapterWork() = default;
  // Calls `done`, on any thread, after each Prefetch or Load that ends here.
  virtual void NotifyWhenLoaded(std::function<void()> done) = 0;
  // Of a Prefetch or Load that Start left running; nothing while it runs.
  virtual std::optional<absl::Status> OutcomeOf(CommandId id) = 0;
  // Of a Prefetch that has ended: whether this rank held the image before.
  virtual bool WasInHost(CommandId id) = 0;
  // Every rank's has ended; what failed on one is undone here too. An error ends the process.
  virtual absl::Status Settle(CommandId id, const absl::Status& outcome) = 0;
  // Before Start of an eager Step: waits until it can follow the copies of the loads it names. An
  // error is the Step's outcome.
  virtual absl::Status AwaitLoads(const StepPlan& plan) = 0;
  // This rank's host tier: all of it, and what came and went since the last call.
  virtual std::vector<TierChange> HostTier() = 0;
  virtual std::vector<TierChange> TakeHostChanges() = 0;
};

// One tp_rank's execution of commands. Every tp_rank is called with the same, in the same order.
// *Step thread only.*
class CommandExecutor {
 public:
  virtual ~CommandExecutor() = default;
  // Sequences and loads under way are forgotten, adapters stay. An error ends the process.
  virtual absl::StatusOr<AttachReport> Attach(const Epoch& epoch, const GroupLimits& limits) = 0;
  // The outer error means that the group is broken and ends the process. A Step may be left running
  // on the device: then nothing is returned, and Finish completes it, in the order of the Starts. A
  // Prefetch, started when the content is on the node, and a Load that is not refused are left
  // running beside the steps: AdapterWork tells of them.
  virtual absl::StatusOr<std::optional<Completion>> Start(const Command& command) = 0;
  // Waits for the oldest Step that runs. Call it only while num_running() > 0.
  virtual absl::StatusOr<Completion> Finish() = 0;
  virtual size_t num_running() const = 0;
  // Calls `done`, on any thread, when the Step that was started last has run; from Start on.
  virtual void NotifyWhenDone(std::function<void()> done) = 0;
  // Microseconds of the last Start that were this rank's own work, not waits for others.
  virtual uint64_t work_us() const = 0;
  // After a step with rows that every rank executed: work_us by rank.
  virtual void ObserveWork(std::span<const uint64_t> work_us) = 0;
  virtual AdapterWork& adapters() = 0;
};

}  // namespace rootstock
