// What a group's nodes hold on their hosts and disks, as far as they have told.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "common/plan/plan.h"
#include "coordinator/memory/eviction.h"

namespace rootstock {

// The nodes own these tiers and evict as they need to; what is gone is fetched again.
// *Thread-safe.*
class NodeTiers {
 public:
  struct Totals {
    uint64_t adapters = 0;
    uint64_t bytes = 0;
  };

  // True when it was news.
  bool Apply(const TierChange& change);
  bool Has(const Digest& digest, Tier tier) const;
  RefetchFrom FromOf(const Digest& digest) const;
  Totals Of(Tier tier) const;  // host or disk
  std::vector<CachedAdapter> List() const;

 private:
  struct Held {
    bool on_host = false, on_disk = false;
    uint64_t host_bytes = 0, disk_bytes = 0;
  };
  mutable std::mutex mutex_;
  std::unordered_map<Digest, Held> held_;
  Totals host_, disk_;
};

}  // namespace rootstock
