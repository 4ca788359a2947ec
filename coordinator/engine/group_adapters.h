// Which adapters one group's device holds, fetches, loads and forgets.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "coordinator/adapters/adapter.h"
#include "coordinator/engine/footprint.h"
#include "coordinator/memory/page_allocator.h"
#include "coordinator/scheduler/scheduler.h"

namespace rootstock {

// The legal path is kAbsent → kFetching → kFetched → kLoading → kResident → kLeaving → kAbsent;
// a failed fetch or load leads back to kAbsent.
enum class Residency {
  kAbsent,
  kFetching,  // Prefetch sent
  kFetched,   // content is on every node; pages are being collected
  kLoading,   // Load sent
  kResident,
  kLeaving,  // Drop sent, or waiting for the last Step that names it
};

// Engine thread only.
class GroupAdapters {
 public:
  using SendFn = std::function<CommandId(decltype(Command::kind))>;

  // `has_name`: whether later requests may come for the content.
  GroupAdapters(PageAllocator& pages, SendFn send, std::function<bool(const Digest&)> has_name)
      : pages_(pages), send_(std::move(send)), has_name_(std::move(has_name)) {}

  // Found on the device at Attach, its pages adopted.
  void Adopt(const ResidentAdapter& found, const AdapterFootprint& footprint);

  // Of those, one that can't be used here: its pages are free when the Drop completes.
  void Discard(const Digest& digest, bool from_disk);

  // A waiting sequence needs it: fetched when it is nowhere. Clears a Doom of one that has a name
  // again; dooms one that has lost its name, whenever that was. One that is here or on its way
  // keeps its footprint.
  void Want(const Digest& digest, const AdapterFootprint& footprint, Order order);
  void Unwant(const Digest& digest, Order order);
  bool IsResident(const Digest& digest) const;
  // Of one that is here or on its way.
  std::optional<AdapterFootprint> FootprintOf(const Digest& digest) const;
  bool IsOnDisk(const Digest& digest) const { return on_disk_.contains(digest); }
  // A sequence begins and ends to run with it.
  void Use(const Digest& digest);
  void Unuse(const Digest& digest, CommandId last_step);
  // Forget it, on the nodes' disks too, once nothing waits for it or uses it.
  void Doom(const Digest& digest);

  // Adds loads, idle adapters and coming pages; the decision's indices refer to this view.
  void FillView(SchedulerView& view);
  void Evict(uint32_t idle_index);
  std::vector<Order> WaitingOf(uint32_t idle_index) const;
  void Unreserve(uint32_t load_index);
  void Reserve(uint32_t load_index, uint32_t pages);

  struct Event {
    enum Kind { kNothing, kArrived, kFailed, kLeft } kind = kNothing;
    Digest digest;
    absl::Status why;            // kFailed
    std::vector<Order> waiting;  // whom it concerns, oldest first
    bool was_load = false;       // a fetch or load ended, well or not
    bool from_disk = false;      // the nodes had the content before
    bool evicted = false;        // kLeft: for want of pages; else nobody may use it any more
    uint32_t pages = 0;          // kLeft
    uint64_t started = 0;        // tag of its beginning, see set_tag
  };
  // Of a Prefetch, Load or Drop; kNothing for other ids.
  Event Completed(CommandId command, const absl::Status& outcome);
  void StepCompleted(CommandId step);

  std::vector<ResidentAdapter> Residents() const;
  size_t num_residents() const { return num_residents_; }
  uint64_t residency_changes() const { return changes_; }
  // Stamped on fetches as they begin (a time, as the owner counts it).
  void set_tag(uint64_t tag) { tag_ = tag; }

 private:
  struct Entry {
    Digest digest;
    Residency state = Residency::kAbsent;
    AdapterFootprint footprint;
    std::vector<PageId> pages;
    uint32_t users = 0;
    std::set<Order> waiting;
    CommandId last_step{0};
    uint64_t idle_since = 0;  // key in idle_ while resident without users
    bool drop_sent = false;
    bool evicted = false;
    bool doomed = false;
    bool from_disk = false;  // the nodes had the content when the fetch began
    uint64_t started = 0;
  };

  Entry& Find(const Digest& digest) { return *entries_.at(digest); }
  void Fetch(Entry& entry);
  void BecomeIdle(Entry& entry);
  void StopIdling(Entry& entry);
  void StartLeaving(Entry& entry);
  void SendDrop(Entry& entry);
  void Settle(Entry& entry);  // what follows when waiting or users changed
  Event FetchOrLoadDone(Entry& entry, const absl::Status& outcome);

  PageAllocator& pages_;
  SendFn send_;
  const std::function<bool(const Digest&)> has_name_;
  std::unordered_map<Digest, std::unique_ptr<Entry>> entries_;
  std::map<uint64_t, Entry*> idle_;  // least recently used first
  std::map<CommandId, Entry*> pending_;
  std::unordered_set<Digest> on_disk_;  // of the nodes, as far as this attach knows
  std::vector<Entry*> leaving_;         // Drop not sent yet
  std::set<Entry*> fetched_;            // collecting pages
  std::vector<Entry*> view_idle_, view_loads_;
  uint32_t pages_leaving_ = 0;
  uint64_t next_idle_ = 1;
  uint64_t tag_ = 0;
  size_t num_residents_ = 0;
  uint64_t changes_ = 0;
  CommandId completed_step_{0};
};

}  // namespace rootstock
