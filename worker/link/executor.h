// What the link hands commands to; worker/runtime's end is wired up in main.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"

namespace rootstock {

// One tp_rank's execution of commands. Every tp_rank is called with the same, in the same order.
// *Step thread only.*
class CommandExecutor {
 public:
  virtual ~CommandExecutor() = default;
  // Sequences are forgotten, adapters stay. An error ends the process.
  virtual absl::StatusOr<AttachReport> Attach(const Epoch& epoch, const GroupLimits& limits) = 0;
  // The outer error means that the group is broken and ends the process. A Step may be left running
  // on the device: then nothing is returned, and Finish completes it, in the order of the Starts.
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
  // Another tp_rank failed what succeeded here.
  virtual void Abandon(const Command& command) = 0;
};

}  // namespace rootstock
