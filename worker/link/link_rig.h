// Test peers of the link: an executor that records, and a group under a scripted coordinator.
#pragma once

#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/link/executor.h"
#include "worker/link/fake_coordinator.h"
#include "worker/link/group_bus.h"
#include "worker/link/group_link.h"

namespace rootstock {

// *Step thread only.*
class RecordingExecutor : public CommandExecutor, public AdapterWork {
 public:
  absl::StatusOr<AttachReport> Attach(const Epoch& epoch, const GroupLimits& limits) override;
  uint64_t work_us() const override { return own_work_us; }
  void ObserveWork(std::span<const uint64_t> work_us) override {
    work.emplace_back(work_us.begin(), work_us.end());
  }
  absl::StatusOr<std::optional<Completion>> Start(const Command& command) override;
  absl::StatusOr<Completion> Finish() override;
  size_t num_running() const override { return running_.size(); }
  void NotifyWhenDone(std::function<void()> done) override;
  AdapterWork& adapters() override { return *this; }
  void NotifyWhenLoaded(std::function<void()> done) override { on_loaded_ = std::move(done); }
  std::optional<absl::Status> OutcomeOf(CommandId id) override;
  bool WasInHost(CommandId id) override { return was_in_host; }
  absl::Status Settle(CommandId id, const absl::Status& outcome) override;
  absl::Status AwaitLoads(const StepPlan& plan) override { return eager_outcome; }
  std::vector<TierChange> HostTier() override { return host_tier; }
  std::vector<TierChange> TakeHostChanges() override { return std::exchange(host_changes, {}); }

  // "attach 1.2 seqs=64", "step 7 rows=2", "load 3", "stage 4", "abandon 3", … in order.
  std::vector<std::string> log;
  bool fail_loads = false;
  std::deque<absl::Status> stage_outcomes;  // of the next prefetches; good when there are none
  int looks = 0;  // at a load or a prefetch before it has ended; 0: it ends at once and says so
  std::function<bool()> held;  // while it says so nothing of them ends
  bool was_in_host = false;
  absl::Status eager_outcome;
  std::vector<TierChange> host_tier, host_changes;
  uint64_t own_work_us = 0;
  std::vector<std::vector<uint64_t>> work;  // ObserveWork's
  // Steps that may run at once: the oldest has run when another starts over it, all when a command
  // of another kind comes. 0: each is complete when it was started.
  size_t steps_running = 0;
  std::function<void(const Command&)> before;  // a command is executed
  std::vector<ResidentAdapter> resident;

 private:
  struct Work {
    std::optional<LoadAdapter> load;
    int looks = 0;
    absl::Status outcome;
  };
  void LetRun(size_t most);

  std::deque<Completion> running_;
  std::deque<std::function<void()>> done_;  // of steps that have not run
  std::function<void()> on_loaded_;
  std::map<CommandId, Work> beside_;
};

// The group of all ranks of MPI_COMM_WORLD; the coordinator lives in rank 0. Every rank makes the
// same calls.
class LinkRig {
 public:
  LinkRig();
  ~LinkRig();
  bool first() const { return bus.tp_rank() == 0; }
  bool last() const { return bus.tp_rank() == bus.tp_size() - 1; }

  // Runs the group until it ends; the exit code, or -1 when it broke. `prepare`: rank 0, before the
  // coordinator's address is told to the others.
  int Run(FakeCoordinator::Script script,
          const std::function<void(FakeCoordinator&)>& prepare = nullptr);
  // With a coordinator elsewhere, or nowhere.
  int RunAt(const std::string& address);

  GroupInfo Info() const;

  // The node's, as a group opens it anew.
  BlobCache Disk() const { return BlobCache(cache, disk_cache_bytes); }

  GroupBus bus;
  RecordingExecutor executor;
  std::filesystem::path cache;
  uint64_t disk_cache_bytes = uint64_t{1} << 30;
  std::string object_store;
};

}  // namespace rootstock
