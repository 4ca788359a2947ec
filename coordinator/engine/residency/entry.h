// One adapter as a group's engine knows it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "common/plan/plan.h"
#include "coordinator/engine/footprint.h"
#include "coordinator/memory/eviction.h"
#include "coordinator/scheduler/scheduler.h"

namespace rootstock {

// The legal path is kAbsent → kQueued → kFetching → kFetched → kLoading → kResident → kLeaving →
// kAbsent; what nobody wants any more, and what fails, leads back to kAbsent.
enum class Residency {
  kAbsent,
  kQueued,    // wanted; its Prefetch waits for room in the window
  kFetching,  // Prefetch sent
  kFetched,   // content is on every node; pages are being collected
  kLoading,   // Load sent
  kResident,
  kLeaving,  // Drop sent, or waiting for the last Step that names it
};

using UnloadDone = std::function<void(const TierBytes&)>;

// Plain data; GroupAdapters alone changes it. Engine thread only.
struct ResidencyEntry {
  Digest digest;
  Residency state = Residency::kAbsent;
  bool followed = false;  // kLoading: Steps may name it behind the copy
  AdapterFootprint footprint;
  std::vector<PageId> pages;
  uint32_t users = 0;
  std::set<Order> waiting;
  Order pin_order = kNobody;  // of a pinned one: its place in line
  CommandId last_step{0};
  EvictionFacts facts;
  bool from_host = false;  // loaded without a Prefetch: the nodes say that their hosts have it
  bool refetched = false;  // its Load found the nodes' copies gone, and it was fetched again
  bool arrived = false;    // it was resident since it last was absent
  bool drop_sent = false;
  bool drop_refused = false;  // the last one was, and the ranks may still hold the pages
  bool evicted = false;
  bool drop_all = false;            // the Drop on its way is from all tiers
  bool doomed = false;              // leaves all tiers once nobody holds it
  bool slow = false;                // its fetch takes long: it no longer fills the window
  TierBytes freed;                  // by the Drops since it began to leave
  std::vector<UnloadDone> unloads;  // to be told when it has left
  FetchSource source = FetchSource::kNone;
  absl::Time started;  // of the fetch
  // Keys under which the ordered sets hold it, while they do.
  Order line_key = kNobody;
  double idle_score = 0;
  uint64_t idle_number = 0;

  bool pinned() const { return pin_order != kNobody; }
  // Nobody waits for it, uses it or has pinned it.
  bool unwanted() const { return waiting.empty() && users == 0 && !pinned(); }
  Order line() const { return waiting.empty() ? pin_order : std::min(*waiting.begin(), pin_order); }
};

}  // namespace rootstock
