#include "coordinator/engine/residency/group_adapters.h"

#include <algorithm>
#include <utility>

namespace rootstock {
namespace {

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

// Nobody wants it any more: what is half-way goes back, what is doomed leaves.
void GroupAdapters::Settle(Entry& entry) {
  if (!entry.unwanted()) return;
  if (entry.state == Residency::kQueued) {
    window_.Unqueue(entry);
    entry.state = Residency::kAbsent;
  }
  // No Unload waits for a store that takes long. What it brings is dropped when it has ended.
  if (entry.state == Residency::kFetching && entry.slow) {
    for (const UnloadDone& done : std::exchange(entry.unloads, {})) done({});
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
