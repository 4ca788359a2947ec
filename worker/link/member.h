// What every tp_rank does with a message of the bus.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/link/blobs/prefetcher.h"
#include "worker/link/executor.h"
#include "worker/link/group_bus.h"
#include "worker/link/tier_view.h"

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
  Member(GroupBus& bus, CommandExecutor& executor, BlobCache& cache, Prefetcher* prefetcher,
         std::function<void()> on_step_done);

  // An error means that the group is broken: end the process.
  absl::StatusOr<Answers> Handle(const BusMessage& message);
  bool has_running() const { return executor_.num_running() > 0; }
  // Whether a load or prefetch has ended here, and not everywhere when ranks last compared.
  bool waits_for_others() const { return waits_for_others_; }

 private:
  // A Prefetch or a Load under way, the same on every rank.
  struct Beside {
    Command command;
    bool on_node = false;  // a Prefetch whose content is not yet on every node
    bool again = false;    // for the second time: it was spoilt when a rank read it
    FetchSource source = FetchSource::kNone;
    uint64_t bytes = 0;
  };

  absl::StatusOr<AttachReport> Attach(const std::string& bytes);
  absl::Status Run(const std::string& bytes, Answers& answers);
  absl::Status Execute(const Command& command, Answers& answers);
  absl::Status AfterStart(const Command& command, Completion completion, Answers& answers);
  static const Digest& DigestOf(const Beside& work);
  bool IsUnderWay(const Digest& digest) const;
  // On this node, beside the executor's part.
  absl::Status DropFromDisk(const DropAdapter& drop, Completion& completion);
  void AddFreedEverywhere(Completion& completion);
  absl::Status Finish(Answers& answers);
  // Of a step that was left running.
  absl::Status ShareWork();

  // What has ended on every rank completes, or goes on to its next part.
  absl::Status Collect(Answers& answers);
  // A letter: . running, ! failed, else '0' + FetchSource.
  char LetterOf(const Beside& work);
  absl::Status OutcomeHere(const Beside& work);
  // Of its part that has ended on every rank; whether all of it has.
  absl::StatusOr<bool> GoOn(Beside& work, bool failed, Answers& answers);
  // Content that was spoilt on a node's disk comes from elsewhere, once.
  bool FetchAgain(Beside& work, const absl::Status& outcome);
  void ShareChanges(const std::vector<TierChange>& mine);
  // What fits a message; the rest goes with completions.
  std::vector<CachedAdapter> Tell(std::vector<CachedAdapter> cached);
  void TellChanges(Completion& completion);
  std::vector<TierChange> TakeChangesHere();

  GroupBus& bus_;
  CommandExecutor& executor_;
  BlobCache& cache_;
  Prefetcher* const prefetcher_;
  const std::function<void()> on_step_done_;
  uint64_t left_running_ = 0;  // steps
  std::deque<Beside> beside_;
  bool waits_for_others_ = false;
  TierView tiers_;
  std::deque<TierChange> untold_;  // for the next completions
};

}  // namespace rootstock
