#include "coordinator/engine/residency/group_adapters.h"

#include <algorithm>
#include <utility>

namespace rootstock {
namespace {

// What the scheduler looks at in one step.
constexpr size_t kLoadWindow = 16;
constexpr size_t kIdleWindow = 64;

constexpr absl::Duration kPressure = absl::Seconds(1);  // since an eviction
constexpr uint32_t kSpareLoads = 2;
constexpr uint32_t kSpareShare = 4;  // of the pages of idle ones, one in so many at most
constexpr size_t kSpareIdle = 8;     // with fewer idle ones each is worth more than a quick load

double Seconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

}  // namespace

GroupAdapters::Entry& GroupAdapters::Make(const Digest& digest, const AdapterFootprint& footprint) {
  std::unique_ptr<Entry>& slot = entries_[digest];
  if (!slot) {
    slot = std::make_unique<Entry>();
    slot->digest = digest;
  }
  if (slot->state == Residency::kAbsent || slot->state == Residency::kLeaving) {
    slot->footprint = footprint;
    slot->facts.bytes = footprint.pages * port_.page_bytes;
  }
  return *slot;
}

void GroupAdapters::Adopt(const ResidentAdapter& found, const AdapterFootprint& footprint) {
  Entry& entry = Make(found.digest, footprint);
  entry.pages = found.pages;
  Arrive(entry);
  BecomeIdle(entry);
}

void GroupAdapters::Discard(const Digest& digest, bool all_tiers) {
  Entry& entry = Find(digest);
  entry.doomed = all_tiers;
  StartLeaving(entry);
}

void GroupAdapters::Want(const Digest& digest, const AdapterFootprint& footprint, Order order) {
  Entry& entry = Make(digest, footprint);
  entry.doomed = !port_.has_name(digest) || !entry.unloads.empty();
  entry.waiting.insert(order);
  Rekey(entry);
  if (entry.state == Residency::kAbsent) Queue(entry);
}

void GroupAdapters::Unwant(const Digest& digest, Order order) {
  Entry& entry = Find(digest);
  entry.waiting.erase(order);
  if (entry.unwanted()) {
    Settle(entry);
  } else {
    Rekey(entry);
  }
}

bool GroupAdapters::IsUsable(const Digest& digest) const {
  const auto it = entries_.find(digest);
  if (it == entries_.end()) return false;
  return it->second->state == Residency::kResident ||
         (it->second->state == Residency::kLoading && it->second->followed);
}

bool GroupAdapters::IsLoading(const Digest& digest) const {
  const auto it = entries_.find(digest);
  return it != entries_.end() && it->second->state == Residency::kLoading;
}

std::optional<Tier> GroupAdapters::NearestTier(const Digest& digest) const {
  if (IsUsable(digest)) return Tier::kDevice;
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    if (nodes_.Has(digest, tier)) return tier;
  }
  return std::nullopt;
}

std::optional<AdapterFootprint> GroupAdapters::FootprintOf(const Digest& digest) const {
  const auto it = entries_.find(digest);
  // What leaves may have been laid out otherwise.
  if (it == entries_.end() || it->second->state == Residency::kLeaving) return std::nullopt;
  return it->second->footprint;
}

void GroupAdapters::Use(const Digest& digest) {
  Entry& entry = Find(digest);
  if (entry.users++ == 0) StopIdling(entry);
  entry.facts = UsedAgain(entry.facts, Seconds(port_.clock()));
}

void GroupAdapters::Unuse(const Digest& digest, CommandId last_step) {
  Entry& entry = Find(digest);
  entry.last_step = std::max(entry.last_step, last_step);
  if (--entry.users > 0) return;
  if (entry.state == Residency::kResident) BecomeIdle(entry);
  if (entry.state == Residency::kLeaving) LeaveIfFree(entry);
  Settle(entry);
}

void GroupAdapters::Unload(const Digest& digest, UnloadDone done) {
  std::unique_ptr<Entry>& slot = entries_[digest];
  if (!slot) {
    slot = std::make_unique<Entry>();
    slot->digest = digest;
  }
  if (slot->pinned()) {
    if (done) done({});
    return;
  }
  slot->doomed = true;
  if (done) slot->unloads.push_back(std::move(done));
  Settle(*slot);
}

void GroupAdapters::SetPins(const std::map<Digest, AdapterFootprint>& pins, Order order) {
  std::vector<Entry*> unpinned;
  for (auto& [digest, entry] : entries_) {
    if (entry->pinned() && !pins.contains(digest)) unpinned.push_back(entry.get());
  }
  for (Entry* entry : unpinned) {
    entry->pin_order = kNobody;
    entry->doomed |= !port_.has_name(entry->digest);
    port_.send(PinAdapter{entry->digest, Tier::kDisk, false});
    if (entry->state == Residency::kResident && entry->users == 0) BecomeIdle(*entry);
    entry->unwanted() ? Settle(*entry) : Rekey(*entry);
  }
  for (const auto& [digest, footprint] : pins) {
    Entry& entry = Make(digest, footprint);
    if (entry.pinned()) continue;
    StopIdling(entry);
    entry.pin_order = order;
    if (entry.state != Residency::kLeaving) {  // an Unload that waits for its load ends here
      entry.doomed = false;
      for (const UnloadDone& done : std::exchange(entry.unloads, {})) done({});
    }
    port_.send(PinAdapter{digest, Tier::kDisk, true});
    Rekey(entry);
    if (entry.state == Residency::kAbsent) Queue(entry);
  }
}

// What lies on the hosts needs a Prefetch only where Steps shall follow its Load; else it would
// cost the request some steps. Should the nodes evict it meanwhile, the Load makes it again from
// the disk, or fails and is fetched.
void GroupAdapters::Queue(Entry& entry) {
  entry.from_host = !entry.refetched && port_.busy() && nodes_.Has(entry.digest, Tier::kHost);
  if (entry.from_host) {
    entry.source = FetchSource::kHost;
    window_.Bypass(entry, port_.clock());
    BecomeFetched(entry);
    return;
  }
  entry.state = Residency::kQueued;
  window_.Queue(entry);
  SendFetches();
}

void GroupAdapters::BecomeFetched(Entry& entry) {
  entry.state = Residency::kFetched;
  entry.line_key = entry.line();
  fetched_.emplace(entry.line_key, &entry);
}

void GroupAdapters::SendFetches() {
  while (Entry* entry = window_.Next()) {
    entry->state = Residency::kFetching;
    window_.Started(*entry, port_.clock());
    pending_[port_.send(PrefetchAdapter{entry->digest, entry->footprint.layout_id,
                                        entry->footprint.sharding, /*to_host=*/true,
                                        entry->footprint.content_bytes})] = entry;
  }
}

void GroupAdapters::Rekey(Entry& entry) {
  if (entry.state == Residency::kQueued) window_.Requeue(entry);
  if (entry.state != Residency::kFetched || entry.line_key == entry.line()) return;
  fetched_.erase({entry.line_key, &entry});
  entry.line_key = entry.line();
  fetched_.emplace(entry.line_key, &entry);
}

void GroupAdapters::BecomeIdle(Entry& entry) {
  if (entry.pinned()) return;
  entry.facts = Touched(entry.facts, Seconds(port_.clock()));
  entry.facts.from = nodes_.FromOf(entry.digest);
  entry.idle_score = KeepScore(port_.eviction, entry.facts);
  entry.idle_number = next_idle_++;
  idle_[{entry.idle_score, entry.idle_number}] = &entry;
}

void GroupAdapters::StopIdling(Entry& entry) {
  idle_.erase({entry.idle_score, entry.idle_number});
  entry.idle_number = 0;
}

void GroupAdapters::GiveBackPages(Entry& entry) {
  pages_.ReleaseAdapter(entry.pages);
  entry.pages.clear();
  holding_.erase(&entry);
}

// Nobody wants it any more: what is half-way goes back, what is doomed leaves.
void GroupAdapters::Settle(Entry& entry) {
  if (!entry.unwanted()) return;
  if (entry.state == Residency::kQueued) {
    window_.Unqueue(entry);
    entry.state = Residency::kAbsent;
  }
  if (entry.state == Residency::kFetched) {
    GiveBackPages(entry);
    fetched_.erase({entry.line_key, &entry});
    window_.Left(entry);
    entry.state = Residency::kAbsent;
    SendFetches();
  }
  if (entry.state == Residency::kResident && entry.doomed) StartLeaving(entry);
  if (entry.state != Residency::kAbsent) return;
  if (entry.doomed) {
    SendDrop(entry);  // copies may lie on the nodes
  } else {
    entries_.erase(Digest(entry.digest));  // a copy: the entry goes
  }
}

// Of one that holds pages.
void GroupAdapters::StartLeaving(Entry& entry) {
  StopIdling(entry);
  if (entry.state == Residency::kResident) {
    --num_residents_;
    resident_pages_ -= static_cast<uint32_t>(entry.pages.size());
    changes_.push_back({{entry.digest, entry.footprint.layout_id, entry.pages}, false});
  }
  entry.state = Residency::kLeaving;
  entry.drop_sent = false;
  entry.evicted = false;
  pages_leaving_ += static_cast<uint32_t>(entry.pages.size());
  leaving_.push_back(&entry);
  LeaveIfFree(entry);
}

void GroupAdapters::LeaveIfFree(Entry& entry) {
  if (entry.drop_sent || entry.users > 0 || entry.last_step > completed_step_) return;
  std::erase(leaving_, &entry);
  SendDrop(entry);
}

void GroupAdapters::SendDrop(Entry& entry) {
  entry.state = Residency::kLeaving;
  entry.drop_sent = true;
  // After a refusal the pages come first: what the disk says must not keep them.
  entry.drop_all = entry.doomed && (!entry.drop_refused || entry.pages.empty());
  const Tiers tiers = entry.drop_all ? kAllTiers : Tiers(Tier::kDevice);
  pending_[port_.send(DropAdapter{entry.digest, tiers})] = &entry;
}

void GroupAdapters::StepCompleted(CommandId step) {
  completed_step_ = step;
  for (Entry* entry : std::vector<Entry*>(leaving_)) LeaveIfFree(*entry);
}

// While adapters come and go, pages for the next ones are free before they are asked for: a Drop
// takes a step or two, in which its successor would wait. Where all fit again, nothing leaves.
uint32_t GroupAdapters::SparePages() const {
  const bool pressed = port_.clock() - evicted_ < kPressure;
  return pressed && idle_.size() >= kSpareIdle ? kSpareLoads * last_load_pages_ : 0;
}

void GroupAdapters::FillView(SchedulerView& view) {
  view.pages_coming = pages_leaving_;
  view_idle_.clear();
  uint32_t idle_pages = 0;
  for (const auto& [score, entry] : idle_) {
    if (view_idle_.size() == kIdleWindow) break;
    view_idle_.push_back(entry);
    if (entry->waiting.empty()) idle_pages += static_cast<uint32_t>(entry->pages.size());
    view.idle_adapters.push_back({static_cast<uint32_t>(entry->pages.size()),
                                  entry->waiting.empty() ? kNobody : *entry->waiting.begin()});
  }
  // One large adapter that came last must not send all small ones away.
  view.spare_pages = std::min(SparePages(), idle_pages / kSpareShare);
  view_loads_.clear();
  for (const auto& [order, entry] : fetched_) {
    if (view_loads_.size() == kLoadWindow) break;
    view_loads_.push_back(entry);
    const auto reserved = static_cast<uint32_t>(entry->pages.size());
    view.loads.push_back({order, reserved, entry->footprint.pages - reserved});
  }
  looked_at_ += view_idle_.size() + view_loads_.size() + holding_.size();
  // Those beyond the window hold nothing that an older one may lack.
  for (Entry* entry : std::vector<Entry*>(holding_.begin(), holding_.end())) {
    if (std::find(view_loads_.begin(), view_loads_.end(), entry) == view_loads_.end()) {
      GiveBackPages(*entry);
    }
  }
}

void GroupAdapters::Evict(uint32_t idle_index, bool ahead) {
  if (!ahead) evicted_ = port_.clock();
  Entry& entry = *view_idle_[idle_index];
  StartLeaving(entry);
  entry.evicted = true;
}

std::vector<Order> GroupAdapters::WaitingOf(uint32_t idle_index) const {
  const std::set<Order>& waiting = view_idle_[idle_index]->waiting;
  return {waiting.begin(), waiting.end()};
}

void GroupAdapters::Unreserve(uint32_t load_index) { GiveBackPages(*view_loads_[load_index]); }

void GroupAdapters::Reserve(uint32_t load_index, uint32_t pages) {
  Entry& entry = *view_loads_[load_index];
  const std::vector<PageId> got = pages_.TakeForAdapter(pages);
  entry.pages.insert(entry.pages.end(), got.begin(), got.end());
  if (!entry.pages.empty()) holding_.insert(&entry);
  if (entry.pages.size() < entry.footprint.pages) return;
  holding_.erase(&entry);
  fetched_.erase({entry.line_key, &entry});
  window_.Left(entry);
  entry.state = Residency::kLoading;
  last_load_pages_ = entry.footprint.pages;
  pending_[port_.send(LoadAdapter{entry.digest, entry.footprint.layout_id, entry.footprint.sharding,
                                  entry.pages})] = &entry;
  // Without an image on the hosts the ranks would stand still until they have read it.
  entry.followed =
      port_.loads_by_layer && !entry.from_host && nodes_.Has(entry.digest, Tier::kHost);
  if (entry.followed) {
    followed_.push_back(entry.digest);
    BecomeUsable(entry);
  }
  SendFetches();
}

void GroupAdapters::BecomeUsable(Entry& entry) {
  usable_.insert(usable_.end(), entry.waiting.begin(), entry.waiting.end());
}

void GroupAdapters::Arrive(Entry& entry) {
  entry.state = Residency::kResident;
  entry.arrived = true;
  entry.refetched = false;
  ++num_residents_;
  resident_pages_ += static_cast<uint32_t>(entry.pages.size());
  changes_.push_back({{entry.digest, entry.footprint.layout_id, entry.pages}, true});
}

}  // namespace rootstock
