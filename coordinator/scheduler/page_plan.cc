#include "coordinator/scheduler/page_plan.h"

#include <algorithm>

namespace rootstock {
namespace {

Order OldestOf(const SchedulerView& view) {
  Order oldest = kNobody;
  if (!view.running.empty()) oldest = std::min(oldest, view.running.front().order);
  if (!view.waiting.empty()) oldest = std::min(oldest, view.waiting.front().order);
  if (!view.loads.empty()) oldest = std::min(oldest, view.loads.front().order);
  return oldest;
}

}  // namespace

PagePlan::PagePlan(const SchedulerView& view, Decision& decision)
    : view_(view),
      decision_(decision),
      clean_(view.free_for_loads),
      dirty_(view.free_pages - view.free_for_loads),
      coming_(view.pages_coming),
      adapter_pages_(view.adapter_pages - std::min(view.adapter_pages, view.pages_coming)),
      oldest_(OldestOf(view)),
      preempted_(view.running.size()),
      evicted_(view.idle_adapters.size()),
      unreserved_(view.loads.size()),
      reserved_(view.loads.size()) {}

// Whether adapters may come down to, or up to, so many pages for `order`'s sake.
bool PagePlan::KvMayTake(Order order, uint32_t pages) const {
  return order == oldest_ || adapter_pages_ >= view_.floors.adapters + pages;
}
bool PagePlan::LoadMayTake(Order order, uint32_t pages) const {
  return order == oldest_ || adapter_pages_ + pages + view_.floors.kv <= view_.usable_pages;
}

void PagePlan::TakeForStep(uint32_t pages) {
  const uint32_t from_dirty = std::min(pages, dirty_);
  dirty_ -= from_dirty;
  clean_ -= pages - from_dirty;
}

bool PagePlan::Claim(uint32_t need) {
  const uint32_t lacking = need - std::min(need, free());
  if (coming_ < lacking) return false;
  coming_ -= lacking;
  TakeForStep(need - lacking);
  return true;
}

void PagePlan::ClaimUpTo(uint32_t need) { Claim(std::min(need, free() + coming_)); }

bool PagePlan::OlderWaits(Order order) const {
  if (!view_.waiting.empty() && view_.waiting.front().order < order) return true;
  for (size_t i = 0; i < view_.loads.size(); ++i) {
    if (view_.loads[i].order < order && view_.loads[i].missing > reserved_[i]) return true;
  }
  return false;
}

void PagePlan::Preempt(size_t running) {
  preempted_[running] = true;
  decision_.preempt.push_back(static_cast<uint32_t>(running));
  dirty_ += view_.running[running].freeable;
}

void PagePlan::GiveWay(size_t running) {
  const RunningView& r = view_.running[running];
  if (r.preemptible && (running > 0 || OlderWaits(r.order))) Preempt(running);
}

void PagePlan::MakeRoom(Order order, uint32_t need, bool may_preempt) {
  for (size_t i = view_.loads.size(); i-- > 0 && need > free();) {
    if (view_.loads[i].order > order) TakeBack(i);
  }
  if (need <= free()) return;
  Evict(order, [&](uint32_t pages) { return need > free() + coming_ && KvMayTake(order, pages); });
  if (!may_preempt || need <= free() + coming_) return;
  for (size_t i = view_.running.size(); i-- > 0 && need > free() + coming_;) {
    const RunningView& r = view_.running[i];
    if (r.order <= order) break;
    if (!preempted_[i] && r.preemptible && r.freeable > 0) Preempt(i);
  }
}

void PagePlan::TakeBack(size_t load) {
  clean_ += reserved_[load];
  reserved_[load] = 0;
  if (unreserved_[load] || view_.loads[load].reserved == 0) return;
  unreserved_[load] = true;
  clean_ += view_.loads[load].reserved;
  adapter_pages_ -= view_.loads[load].reserved;
  decision_.unreserve.push_back(static_cast<uint32_t>(load));
}

// more(pages): whether one more, of so many pages, is to go.
void PagePlan::Evict(Order order, const std::function<bool(uint32_t)>& more) {
  // Those that nobody waits for go first.
  for (const bool wanted : {false, true}) {
    for (size_t i = 0; i < view_.idle_adapters.size(); ++i) {
      const IdleAdapterView& a = view_.idle_adapters[i];
      if (!more(a.pages)) return;
      if (evicted_[i] || (a.wanted_by != kNobody) != wanted || a.wanted_by <= order) continue;
      evicted_[i] = true;
      evicted_wanted_ |= wanted;
      coming_ += a.pages;
      adapter_pages_ -= std::min(adapter_pages_, a.pages);
      decision_.evict.push_back(static_cast<uint32_t>(i));
    }
  }
}

void PagePlan::EvictAhead() {
  const size_t needed = decision_.evict.size();
  constexpr Order kLast = kNobody - 1;  // whoever waits for one is before
  Evict(kLast, [&](uint32_t pages) {
    return free() + coming_ < view_.spare_pages && adapter_pages_ >= view_.floors.adapters + pages;
  });
  decision_.evict_ahead = static_cast<uint32_t>(decision_.evict.size() - needed);
}

uint32_t PagePlan::EvictableFor(Order order) const {
  uint32_t pages = 0;
  for (size_t i = 0; i < view_.idle_adapters.size(); ++i) {
    const IdleAdapterView& a = view_.idle_adapters[i];
    if (!evicted_[i] && a.wanted_by > order) pages += a.pages;
  }
  return pages;
}

// Of adapters that nobody waits for, down to the floor.
uint32_t PagePlan::EvictableForKv() const {
  const uint32_t above = adapter_pages_ - std::min(adapter_pages_, view_.floors.adapters);
  return std::min(above, EvictableFor(kNobody - 1));
}

uint32_t PagePlan::ReservedAfter(Order order) const {
  uint32_t pages = 0;
  for (size_t i = 0; i < view_.loads.size(); ++i) {
    if (view_.loads[i].order <= order) continue;
    pages += reserved_[i] + (unreserved_[i] ? 0 : view_.loads[i].reserved);
  }
  return pages;
}

bool PagePlan::Tight(Order order, uint32_t need, uint32_t running) const {
  if (order == oldest_ || running == 0) return false;
  return need + running > free() + coming_ + EvictableForKv() + ReservedAfter(order);
}

void PagePlan::ServeLoadsBefore(Order order) {
  for (; next_load_ < view_.loads.size(); ++next_load_) {
    const LoadView& load = view_.loads[next_load_];
    if (load.order >= order) return;
    if (unreserved_[next_load_]) continue;
    if (load.missing > clean_) {
      // A load waits for pages as they come free and preempts nobody.
      for (size_t i = view_.loads.size(); i-- > next_load_ + 1 && load.missing > clean_;) {
        if (view_.loads[i].order > load.order) TakeBack(i);
      }
    }
    // KV's floor holds it up until adapters in use, or wanted by older ones, become idle.
    const uint32_t evictable = EvictableFor(load.order);
    if (!LoadMayTake(load.order, load.missing - std::min(load.missing, evictable))) continue;
    Evict(load.order, [&](uint32_t) {
      return load.missing > free() + coming_ || !LoadMayTake(load.order, load.missing);
    });
    const uint32_t now = std::min(load.missing, clean_);
    clean_ -= now;
    reserved_[next_load_] = now;
    adapter_pages_ += load.missing;
    coming_ -= std::min(coming_, load.missing - now);
  }
}

void PagePlan::Finish() {
  for (size_t i = 0; i < reserved_.size(); ++i) {
    if (reserved_[i] > 0) decision_.reserve.push_back({static_cast<uint32_t>(i), reserved_[i]});
  }
}

}  // namespace rootstock
