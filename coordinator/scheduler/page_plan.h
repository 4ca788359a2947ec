// Who gets pages in one decision, and who gives them up for it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/scheduler/scheduler.h"

namespace rootstock {

// Pages of a view, as one decision takes and frees them; what is given up goes into the decision at
// once. Free are those for Steps alone (of sequences that stopped: a step in flight may write
// them) and those that Loads may have too; coming are those of adapters that are being dropped.
// *Thread-compatible.*
class PagePlan {
 public:
  PagePlan(const SchedulerView& view, Decision& decision);

  uint32_t free() const { return clean_ + dirty_; }
  bool preempted(size_t running) const { return preempted_[running]; }
  // An adapter that somebody waits for was evicted.
  bool evicted_wanted() const { return evicted_wanted_; }

  void TakeForStep(uint32_t pages);  // of the free ones
  // Sets aside pages that are coming, so that nobody evicts more for the same need. False: too few.
  bool Claim(uint32_t need);
  // What can't be had is not set aside.
  void ClaimUpTo(uint32_t need);
  // Leaves need ≤ free, or need ≤ free + coming, if `order` can get there.
  void MakeRoom(Order order, uint32_t need, bool may_preempt);
  // The youngest that holds pages makes way for older ones; without such it stays.
  void GiveWay(size_t running);
  // With `need` pages taken for an admission, whether no page were left for each of those that run.
  bool Tight(Order order, uint32_t need, uint32_t running) const;
  // Loads older than `order` reserve pages.
  void ServeLoadsBefore(Order order);
  // Idle adapters leave until the view's spare pages are free or coming.
  void EvictAhead();
  // What Loads reserved, into the decision.
  void Finish();

 private:
  bool KvMayTake(Order order, uint32_t pages) const;
  bool LoadMayTake(Order order, uint32_t pages) const;
  bool OlderWaits(Order order) const;
  void Preempt(size_t running);
  void TakeBack(size_t load);
  void Evict(Order order, const std::function<bool(uint32_t)>& more);
  uint32_t EvictableFor(Order order) const;
  uint32_t EvictableForKv() const;
  uint32_t ReservedAfter(Order order) const;

  const SchedulerView& view_;
  Decision& decision_;
  uint32_t clean_, dirty_, coming_;
  uint32_t adapter_pages_;  // those that leave not counted
  const Order oldest_;
  std::vector<bool> preempted_;
  std::vector<bool> evicted_, unreserved_;
  std::vector<uint32_t> reserved_;
  size_t next_load_ = 0;
  bool evicted_wanted_ = false;
};

}  // namespace rootstock
