// Whose pages are for whom: what the scheduler sees and decides, and how pages come back.
#include <algorithm>

#include "coordinator/engine/residency/group_adapters.h"

namespace rootstock {
namespace {

// What the scheduler looks at in one step.
constexpr size_t kLoadWindow = 16;
constexpr size_t kIdleWindow = 64;

constexpr absl::Duration kPressure = absl::Seconds(1);  // since an eviction
constexpr uint32_t kSpareLoads = 2;
constexpr uint32_t kSpareShare = 4;  // of the pages of idle ones, one in so many at most
constexpr size_t kSpareIdle = 8;     // with fewer idle ones each is worth more than a quick load

}  // namespace

void GroupAdapters::GiveBackPages(Entry& entry) {
  pages_.ReleaseAdapter(entry.pages);
  entry.pages.clear();
  holding_.erase(&entry);
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

}  // namespace rootstock
