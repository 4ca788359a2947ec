#include "coordinator/engine/group_adapters.h"

#include <algorithm>
#include <utility>

namespace rootstock {
namespace {

// What the scheduler looks at in one step.
constexpr size_t kLoadWindow = 16;
constexpr size_t kIdleWindow = 64;

}  // namespace

void GroupAdapters::Adopt(const ResidentAdapter& found, const AdapterFootprint& footprint) {
  auto entry = std::make_unique<Entry>();
  entry->digest = found.digest;
  entry->state = Residency::kResident;
  entry->footprint = footprint;
  entry->pages = found.pages;
  on_disk_.insert(found.digest);
  ++num_residents_;
  ++changes_;
  BecomeIdle(*entry);
  entries_[found.digest] = std::move(entry);
}

void GroupAdapters::Discard(const Digest& digest, bool from_disk) {
  Entry& entry = Find(digest);
  entry.doomed = from_disk;
  StartLeaving(entry);
}

void GroupAdapters::Want(const Digest& digest, const AdapterFootprint& footprint, Order order) {
  std::unique_ptr<Entry>& slot = entries_[digest];
  if (!slot) {
    slot = std::make_unique<Entry>();
    slot->digest = digest;
  }
  const bool leaves = slot->state == Residency::kAbsent || slot->state == Residency::kLeaving;
  if (leaves) slot->footprint = footprint;
  slot->doomed = !has_name_(digest);
  slot->waiting.insert(order);
  if (slot->state == Residency::kAbsent) Fetch(*slot);
}

void GroupAdapters::Unwant(const Digest& digest, Order order) {
  Entry& entry = Find(digest);
  entry.waiting.erase(order);
  Settle(entry);
}

bool GroupAdapters::IsResident(const Digest& digest) const {
  const auto it = entries_.find(digest);
  return it != entries_.end() && it->second->state == Residency::kResident;
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
}

void GroupAdapters::Unuse(const Digest& digest, CommandId last_step) {
  Entry& entry = Find(digest);
  entry.last_step = std::max(entry.last_step, last_step);
  if (--entry.users == 0) BecomeIdle(entry);
  Settle(entry);
}

void GroupAdapters::Doom(const Digest& digest) {
  const auto it = entries_.find(digest);
  if (it == entries_.end()) {
    on_disk_.erase(digest);
    send_(DropAdapter{digest, kAllTiers});  // a copy may lie on a node's disk
    return;
  }
  it->second->doomed = true;
  Settle(*it->second);
}

void GroupAdapters::Fetch(Entry& entry) {
  entry.state = Residency::kFetching;
  entry.started = tag_;
  entry.from_disk = on_disk_.contains(entry.digest);
  pending_[send_(PrefetchAdapter{entry.digest, entry.footprint.layout_id, entry.footprint.sharding,
                                 /*to_host=*/false})] = &entry;
}

void GroupAdapters::BecomeIdle(Entry& entry) {
  entry.idle_since = next_idle_++;
  idle_[entry.idle_since] = &entry;
}

void GroupAdapters::StopIdling(Entry& entry) { idle_.erase(entry.idle_since); }

// Nobody waits and nobody uses it: what is half-way goes back, what is doomed leaves.
void GroupAdapters::Settle(Entry& entry) {
  if (!entry.waiting.empty() || entry.users > 0) return;
  if (entry.state == Residency::kFetched) {
    pages_.ReleaseAdapter(entry.pages);
    entry.pages.clear();
    fetched_.erase(&entry);
    entry.state = Residency::kAbsent;
  }
  if (entry.state == Residency::kResident && entry.doomed) StartLeaving(entry);
  if (entry.state == Residency::kAbsent) {
    if (entry.doomed && on_disk_.erase(entry.digest) > 0)
      send_(DropAdapter{entry.digest, kAllTiers});
    entries_.erase(Digest(entry.digest));  // a copy: the entry goes
  }
}

void GroupAdapters::StartLeaving(Entry& entry) {
  StopIdling(entry);
  --num_residents_;
  ++changes_;
  entry.state = Residency::kLeaving;
  entry.drop_sent = false;
  entry.evicted = false;
  pages_leaving_ += static_cast<uint32_t>(entry.pages.size());
  if (entry.last_step <= completed_step_) {
    SendDrop(entry);
  } else {
    leaving_.push_back(&entry);
  }
}

void GroupAdapters::SendDrop(Entry& entry) {
  entry.drop_sent = true;
  pending_[send_(DropAdapter{entry.digest, entry.doomed ? kAllTiers : Tiers(Tier::kDevice)})] =
      &entry;
  if (entry.doomed) on_disk_.erase(entry.digest);
}

void GroupAdapters::StepCompleted(CommandId step) {
  completed_step_ = step;
  std::erase_if(leaving_, [&](Entry* entry) {
    if (entry->last_step > step) return false;
    SendDrop(*entry);
    return true;
  });
}

void GroupAdapters::FillView(SchedulerView& view) {
  view.pages_coming = pages_leaving_;
  view_idle_.clear();
  for (const auto& [since, entry] : idle_) {
    if (view_idle_.size() == kIdleWindow) break;
    view_idle_.push_back(entry);
    view.idle_adapters.push_back({static_cast<uint32_t>(entry->pages.size()),
                                  entry->waiting.empty() ? kNobody : *entry->waiting.begin()});
  }
  view_loads_.assign(fetched_.begin(), fetched_.end());
  std::sort(view_loads_.begin(), view_loads_.end(), [](const Entry* a, const Entry* b) {
    return *a->waiting.begin() < *b->waiting.begin();
  });
  if (view_loads_.size() > kLoadWindow) {
    // Those beyond the window hold nothing that an older one may lack.
    for (size_t i = kLoadWindow; i < view_loads_.size(); ++i) {
      pages_.ReleaseAdapter(view_loads_[i]->pages);
      view_loads_[i]->pages.clear();
    }
    view_loads_.resize(kLoadWindow);
  }
  for (const Entry* entry : view_loads_) {
    const auto reserved = static_cast<uint32_t>(entry->pages.size());
    view.loads.push_back({*entry->waiting.begin(), reserved, entry->footprint.pages - reserved});
  }
}

void GroupAdapters::Evict(uint32_t idle_index) {
  StartLeaving(*view_idle_[idle_index]);
  view_idle_[idle_index]->evicted = true;
}

std::vector<Order> GroupAdapters::WaitingOf(uint32_t idle_index) const {
  const std::set<Order>& waiting = view_idle_[idle_index]->waiting;
  return {waiting.begin(), waiting.end()};
}

void GroupAdapters::Unreserve(uint32_t load_index) {
  Entry& entry = *view_loads_[load_index];
  pages_.ReleaseAdapter(entry.pages);
  entry.pages.clear();
}

void GroupAdapters::Reserve(uint32_t load_index, uint32_t pages) {
  Entry& entry = *view_loads_[load_index];
  const std::vector<PageId> got = pages_.TakeForAdapter(pages);
  entry.pages.insert(entry.pages.end(), got.begin(), got.end());
  if (entry.pages.size() < entry.footprint.pages) return;
  fetched_.erase(&entry);
  entry.state = Residency::kLoading;
  pending_[send_(LoadAdapter{entry.digest, entry.footprint.layout_id, entry.footprint.sharding,
                             entry.pages})] = &entry;
}

GroupAdapters::Event GroupAdapters::FetchOrLoadDone(Entry& entry, const absl::Status& outcome) {
  Event event;
  event.digest = entry.digest;
  event.waiting.assign(entry.waiting.begin(), entry.waiting.end());
  event.was_load = true;
  event.from_disk = entry.from_disk;
  event.started = entry.started;
  if (!outcome.ok()) {
    pages_.ReleaseAdapter(entry.pages);  // every rank has stopped writing
    entry.pages.clear();
    entry.state = Residency::kAbsent;
    event.kind = Event::kFailed;
    event.why = outcome;
    if (entry.waiting.empty()) Settle(entry);
    return event;
  }
  if (entry.state == Residency::kFetching) {
    entry.state = Residency::kFetched;
    event.was_load = false;
    on_disk_.insert(entry.digest);
    fetched_.insert(&entry);
    Settle(entry);
    return event;
  }
  entry.state = Residency::kResident;
  ++num_residents_;
  ++changes_;
  BecomeIdle(entry);
  event.kind = Event::kArrived;
  Settle(entry);
  return event;
}

GroupAdapters::Event GroupAdapters::Completed(CommandId command, const absl::Status& outcome) {
  const auto it = pending_.find(command);
  if (it == pending_.end()) return {};
  Entry& entry = *it->second;
  pending_.erase(it);
  if (entry.state != Residency::kLeaving) return FetchOrLoadDone(entry, outcome);
  Event event;
  event.kind = Event::kLeft;
  event.evicted = entry.evicted;
  event.pages = static_cast<uint32_t>(entry.pages.size());
  event.digest = entry.digest;
  pages_leaving_ -= static_cast<uint32_t>(entry.pages.size());
  pages_.ReleaseAdapter(entry.pages);
  entry.pages.clear();
  entry.state = Residency::kAbsent;
  if (entry.waiting.empty()) {
    Settle(entry);
  } else {
    Fetch(entry);
  }
  return event;
}

std::vector<ResidentAdapter> GroupAdapters::Residents() const {
  std::vector<ResidentAdapter> out;
  for (const auto& [digest, entry] : entries_) {
    if (entry->state != Residency::kResident) continue;
    out.push_back({digest, entry->footprint.layout_id, entry->pages});
  }
  return out;
}

}  // namespace rootstock
