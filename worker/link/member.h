// What every tp_rank does with a message of the bus.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/link/executor.h"
#include "worker/link/group_bus.h"
#include "worker/link/prefetcher.h"

namespace rootstock {

// What the leader tells the coordinator.
struct Answers {
  std::vector<AttachReport> reports;  // at most one
  std::vector<Completion> completions;
};

// All ranks handle the same messages in the same order, and come to the same answers but for the
// rows of a step, which tp_rank 0 has. *Step thread only.*
class Member {
 public:
  // prefetcher: of the node's leader; null on its other ranks. Borrowed. on_step_done: on the
  // group's leader, called on any thread when a Step that was left running has run; empty on the
  // others.
  Member(GroupBus& bus, CommandExecutor& executor, BlobCache cache, Prefetcher* prefetcher,
         std::function<void()> on_step_done);

  // An error means that the group is broken: end the process.
  absl::StatusOr<Answers> Handle(const BusMessage& message);
  bool has_running() const { return executor_.num_running() > 0; }

 private:
  absl::StatusOr<AttachReport> Attach(const std::string& bytes);
  absl::Status Run(const std::string& bytes, Answers& answers);
  absl::Status Execute(const Command& command, Answers& answers);
  absl::Status Finish(Answers& answers);
  // Of a step that was left running.
  absl::Status ShareWork();
  // Prefetches that have ended on every node complete.
  void Collect(Answers& answers);

  GroupBus& bus_;
  CommandExecutor& executor_;
  const BlobCache cache_;
  Prefetcher* const prefetcher_;
  const std::function<void()> on_step_done_;
  std::deque<CommandId> prefetches_;  // not completed, the same on every rank
  uint64_t left_running_ = 0;         // steps
};

}  // namespace rootstock
