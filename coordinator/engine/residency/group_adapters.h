// Which adapters one group's device holds, fetches, loads and forgets.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "coordinator/engine/residency/entry.h"
#include "coordinator/engine/residency/fetch_window.h"
#include "coordinator/engine/residency/node_tiers.h"
#include "coordinator/memory/page_allocator.h"

namespace rootstock {

struct AdapterPort {
  std::function<CommandId(decltype(Command::kind))> send;
  std::function<bool(const Digest&)> has_name;  // whether later requests may come for the content
  std::function<absl::Time()> clock;
  std::function<bool()> busy = [] { return false; };  // sequences run: no Load will be followed
  EvictionPolicy eviction = EvictionPolicy::kLru;
  uint64_t prefetch_bytes = uint64_t{1} << 30;
  uint64_t page_bytes = 0;      // on all tp_ranks together
  bool loads_by_layer = false;  // the group's: Steps may follow a Load that has not completed
};

// Engine thread only.
class GroupAdapters {
 public:
  GroupAdapters(PageAllocator& pages, AdapterPort port)
      : pages_(pages), port_(std::move(port)), window_(port_.prefetch_bytes) {}

  // Found on the device at Attach, its pages adopted.
  void Adopt(const ResidentAdapter& found, const AdapterFootprint& footprint);
  // Of those, one that can't be used here: its pages are free when the Drop completes.
  void Discard(const Digest& digest, bool all_tiers);

  // A waiting sequence needs it: fetched when it is nowhere. Clears a Doom of one that has a name
  // again; dooms one that has lost its name, whenever that was. One that is here or on its way
  // keeps its footprint.
  void Want(const Digest& digest, const AdapterFootprint& footprint, Order order);
  void Unwant(const Digest& digest, Order order);
  // Steps may name it: resident, or loading layer by layer before them.
  bool IsUsable(const Digest& digest) const;
  bool IsLoading(const Digest& digest) const;
  // Loads under way that Steps may follow by layer, oldest first.
  const std::vector<Digest>& followed() const { return followed_; }
  // kDevice when it is usable, else the nearest of the nodes' tiers; nothing when it is on none.
  std::optional<Tier> NearestTier(const Digest& digest) const;
  // Of one that is here or on its way.
  std::optional<AdapterFootprint> FootprintOf(const Digest& digest) const;
  // A sequence begins and ends to run with it.
  void Use(const Digest& digest);
  void Unuse(const Digest& digest, CommandId last_step);
  // Forget it, on the nodes' hosts and disks too, once nothing waits for it or uses it; then tells
  // how many bytes that freed: none of a slow fetch, which is not waited for and leaves nothing.
  // `done` may be empty.
  void Unload(const Digest& digest, UnloadDone done);
  // These are fetched, loaded and never evicted, from a place in line as of `order`; those pinned
  // before and not among them are as any other.
  void SetPins(const std::map<Digest, AdapterFootprint>& pins, Order order);

  // Adds loads, idle adapters and coming pages; the decision's indices refer to this view.
  void FillView(SchedulerView& view);
  // ahead: nobody lacks its pages yet.
  void Evict(uint32_t idle_index, bool ahead = false);
  std::vector<Order> WaitingOf(uint32_t idle_index) const;
  void Unreserve(uint32_t load_index);
  void Reserve(uint32_t load_index, uint32_t pages);
  // Orders whose adapters have become usable since the last call.
  std::vector<Order> TakeUsable() { return std::exchange(usable_, {}); }

  struct Event {
    enum Kind {
      kNothing,
      kFetched,
      kArrived,
      kDelayed,  // it is not usable after all, and is fetched again
      kFailed,
      kLeft
    } kind = kNothing;
    Digest digest;
    absl::Status why;            // kFailed
    std::vector<Order> waiting;  // kFetched, kDelayed, kFailed: whom it concerns, oldest first
    FetchSource source = FetchSource::kNone;
    absl::Duration took;   // kArrived, kFailed: since its fetch began
    bool evicted = false;  // kLeft: for want of pages; else nobody may use it any more
    uint32_t pages = 0;    // kLeft
  };
  // Of a Prefetch, Load or Drop; kNothing for other ids.
  Event Completed(const Completion& completion);
  void StepCompleted(CommandId step);
  // Digests whose fetches have become slow: they hold up nobody else's.
  std::vector<Digest> Tick();
  // What the nodes say of their tiers; to be called before Completed.
  void Report(const std::vector<CachedAdapter>& cached);
  struct NodeEvictions {
    uint32_t host = 0, disk = 0;                  // for want of room
    uint32_t retired_host = 0, retired_disk = 0;  // ordered by Unload
  };
  NodeEvictions Apply(const std::vector<TierChange>& changes);

  const NodeTiers& nodes() const { return nodes_; }
  struct Change {
    ResidentAdapter adapter;
    bool here = false;
  };
  // What came to the device and left it since the last call.
  std::vector<Change> TakeChanges() { return std::exchange(changes_, {}); }
  size_t num_known() const { return entries_.size(); }
  size_t num_fetched() const { return fetched_.size(); }
  size_t num_residents() const { return num_residents_; }
  uint32_t resident_pages() const { return resident_pages_; }
  // Entries that FillView has looked at: what the adapters cost the steps.
  uint64_t looked_at() const { return looked_at_; }

 private:
  using Entry = ResidencyEntry;

  Entry& Find(const Digest& digest) { return *entries_.at(digest); }
  Entry& Make(const Digest& digest, const AdapterFootprint& footprint);
  void Queue(Entry& entry);
  void SendFetches();
  void BecomeFetched(Entry& entry);
  void Rekey(Entry& entry);  // its place in line changed
  void BecomeIdle(Entry& entry);
  void StopIdling(Entry& entry);
  void GiveBackPages(Entry& entry);
  void BecomeUsable(Entry& entry);
  void Arrive(Entry& entry);
  uint32_t SparePages() const;
  void StartLeaving(Entry& entry);
  void LeaveIfFree(Entry& entry);
  void SendDrop(Entry& entry);
  void RetryPins();
  void Settle(Entry& entry);  // what follows when waiting, users or pins changed
  Event FetchDone(Entry& entry, const Completion& completion);
  Event LoadDone(Entry& entry, const absl::Status& outcome);
  Event Failed(Entry& entry, const absl::Status& why);
  Event DropDone(Entry& entry, const Completion& completion);
  bool TriesDropAgain(Entry& entry, const absl::Status& outcome);

  PageAllocator& pages_;
  const AdapterPort port_;
  FetchWindow window_;
  NodeTiers nodes_;
  std::unordered_map<Digest, std::unique_ptr<Entry>> entries_;
  std::set<std::pair<Order, Entry*>> fetched_;  // by line; collecting pages
  std::set<Entry*> holding_;                    // of fetched_, those that have some
  // By score, then by when they became idle: resident, without users, not pinned.
  std::map<std::pair<double, uint64_t>, Entry*> idle_;
  std::map<CommandId, Entry*> pending_;
  std::vector<Digest> failed_pins_;    // to be tried again
  std::vector<Entry*> leaving_;        // Drop not sent yet
  std::vector<Digest> refused_drops_;  // to be sent again
  std::vector<Entry*> view_idle_, view_loads_;
  std::vector<Order> usable_;
  std::vector<Digest> followed_;
  std::vector<Change> changes_;
  uint32_t pages_leaving_ = 0;
  uint32_t resident_pages_ = 0;
  uint32_t last_load_pages_ = 0;
  absl::Time evicted_ = absl::InfinitePast();  // the last one whose pages somebody lacked
  uint64_t next_idle_ = 1;
  size_t num_residents_ = 0;
  uint64_t looked_at_ = 0;
  CommandId completed_step_{0};
};

}  // namespace rootstock
