// A worker group in memory: executes plans with the toy model on simulated pages, and checks the
// contract of PROTOCOL.md at every command.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/cluster/group_link.h"

namespace rootstock {

// Its node has a host tier and a disk, each for a number of adapters, least recently used out
// first. Loads and drops touch their pages the moment they are sent, steps only when they complete:
// the worst that the contract allows. Commands, completions and attaches may come from several
// threads; the figures are to be read when those are at rest.
class FakeGroup {
 public:
  static constexpr uint64_t kHostBytes = 4096, kDiskBytes = 1000;  // of any adapter

  FakeGroup(std::string name, uint32_t num_pages, uint32_t page_tokens);

  // One attach: hello, report, listener. Survivors keep their pages, all other memory is poisoned.
  absl::Status Attach(GroupDirectory& directory, bool keep_adapters = true);
  // Its two halves.
  absl::Status Hello(GroupDirectory& directory);
  absl::Status Report(GroupDirectory& directory, bool keep_adapters = true);
  void Die(const absl::Status& why = absl::UnavailableError("rank 1 died"));
  bool attached() const { return link_ != nullptr; }

  // What is sent and not completed.
  size_t pending_steps() const;
  size_t pending_others() const { return others_.size(); }
  size_t pending_fetches() const {
    return static_cast<size_t>(std::count_if(others_.begin(), others_.end(), [](const Pending& p) {
      return std::holds_alternative<PrefetchAdapter>(p.kind);
    }));
  }
  void CompleteStep();
  void CompleteOther(size_t index);
  // Completes all, again and again while `run` makes more; false if nothing was pending.
  bool CompleteAll();

  // Next fetch or load of the digest fails with the status.
  void FailFetch(const Digest& digest, absl::Status why) { fail_fetch_[digest] = std::move(why); }
  void FailLoad(const Digest& digest, absl::Status why) { fail_load_[digest] = std::move(why); }
  // Drops of the digest fail so until an OK: `on_disk`, those that reach the disk, once the other
  // tiers are dropped; else all, and nothing is.
  void FailDrops(const Digest& digest, absl::Status why, bool on_disk = false) {
    fail_drop_[digest] = {std::move(why), on_disk};
  }
  // It is fetched from the object store, else from the coordinator.
  void PutInStore(const Digest& digest) { in_store_.insert(digest); }
  // Fetches of the digest stay pending in CompleteAll.
  void HoldFetch(const Digest& digest, bool hold);
  // As a group of another build would report them.
  void ChangeLayouts(const std::set<Digest>& digests) {
    for (const Digest& d : digests) residents_[d].layout_id ^= 1;
  }
  // As if the Drops that have not completed had not come.
  void ForgetDrops() {
    for (auto& [digest, resident] : residents_) resident.leaving = false;
  }
  // Changes what the group says of its steps.
  std::function<void(Completion&)> tamper;
  void AskToLeave() { listener_->OnLeaving(); }
  // What the node has room for; to be set before the first attach.
  size_t host_room = 1000, disk_room = 1000;
  bool loads_by_layer = false;

  GroupInfo info;
  PageGeometry geometry;
  std::vector<std::string> violations;
  uint32_t most_adapters_in_a_step = 0;
  uint64_t eager_plans = 0, refused_plans = 0, pins = 0;
  uint64_t plans = 0, ticks = 0, rows = 0, loads = 0, sharded_loads = 0, prefetches = 0, drops = 0;
  uint64_t last_fetch_bytes = 0;   // of the content, as the last Prefetch says
  uint64_t most_result_bytes = 0;  // of one completion's logprobs
  uint64_t most_wasted_rows = 0;   // of one sequence after its last token
  bool left = false;
  absl::Status closed;        // why the coordinator ended the stream
  std::vector<StepPlan> log;  // every plan, when kept
  bool keep_log = false;
  std::set<Digest> residents() const;
  std::set<Digest> fetched() const { return {disk_.begin(), disk_.end()}; }  // on its disk
  std::set<Digest> on_host() const { return {host_.begin(), host_.end()}; }
  const std::set<Digest>& pinned() const { return pinned_; }
  Epoch epoch() const { return order_.epoch; }
  // Of every step of all attaches, in order.
  struct StepTimes {
    std::chrono::steady_clock::time_point received;
    std::optional<std::chrono::steady_clock::time_point> completed;
  };
  std::vector<StepTimes> step_times() const;

 private:
  class Link;
  struct Slot {
    NewSequence sequence;
    std::vector<uint32_t> pages;
    uint32_t next_position = 0;  // by plans sent
    bool sampled = false;        // by plans sent
    // By plans executed.
    uint32_t executed = 0;  // positions
    int32_t last_token = -1;
    uint32_t outputs = 0;
    bool over = false;
    uint64_t wasted = 0;
  };
  struct Resident {
    std::vector<PageId> pages;
    uint64_t layout_id = 0;
    bool complete = false;
    bool leaving = false;
    bool failed = false;  // its Load, of which the coordinator may not have heard
  };
  struct Pending {
    CommandId id;
    decltype(Command::kind) kind;
  };

  void Receive(Command command);
  void CheckStep(CommandId id, const StepPlan& plan);
  void CheckUse(CommandId id, const StepPlan& plan, const Digest& digest);
  // The node's tiers: newest last.
  void TellChanges(Completion& completion);
  void Hold(std::vector<Digest>& tier, Tier which, const Digest& digest);
  uint64_t Lose(std::vector<Digest>& tier, Tier which, const Digest& digest);
  void EndFetch(const PrefetchAdapter& fetch, Completion& completion);
  void EndLoad(const LoadAdapter& load, Completion& completion);
  void EndDrop(const DropAdapter& drop, Completion& completion);
  void CheckRow(CommandId id, const PlanRow& row);
  void CheckNewPage(PageId page);
  void CheckLoad(const LoadAdapter& load);
  absl::Status Refuse(const StepPlan& plan);  // as a worker does, before any of it is done
  std::optional<absl::Status> LoadFault(const Digest& digest) const;
  StepResult Execute(const StepPlan& plan);
  RowResult ExecuteRow(const PlanRow& row);
  uint64_t AdapterKeyOnDevice(const NewSequence& sequence);
  uint64_t& Memory(uint32_t page, uint32_t offset) {
    return memory_[page * geometry.page_tokens + offset];
  }
  void Poison(uint32_t page);
  void Violation(const std::string& text) { violations.push_back(text); }

  mutable std::recursive_mutex mutex_;  // an attach may be answered by commands at once
  std::shared_ptr<Link> link_;
  std::shared_ptr<GroupListener> listener_;
  GroupDirectory::Order order_;
  // Slots as the stream of sent commands leaves them, and their executed twins.
  std::map<uint32_t, std::shared_ptr<Slot>> slots_;
  std::deque<std::pair<Pending, std::vector<std::shared_ptr<Slot>>>> steps_;
  std::vector<StepTimes> step_times_;
  std::vector<Pending> others_;
  std::map<Digest, Resident> residents_;
  std::vector<Digest> host_, disk_;
  std::set<Digest> in_store_, pinned_;
  std::set<Digest> prefetched_;    // to the host, in this attach
  std::set<Digest> told_on_host_;  // in this attach, if only once
  std::vector<TierChange> changes_;
  std::map<Digest, absl::Status> fail_fetch_, fail_load_;
  std::map<Digest, std::pair<absl::Status, bool>> fail_drop_;
  std::set<Digest> held_;
  std::vector<uint64_t> memory_;
  std::map<uint32_t, CommandId> last_step_naming_;  // by page
  CommandId last_completed_step_{0};
  CommandId last_id_{0};
  const std::vector<std::shared_ptr<Slot>>* executing_ = nullptr;
  size_t executing_row_ = 0;
};

}  // namespace rootstock
