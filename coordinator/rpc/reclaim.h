// Freeing contents everywhere, and what that gave.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/adapters/registry.h"
#include "coordinator/engine/engine.h"

namespace rootstock {

struct ReclaimedBytes {
  UnloadedBytes groups;
  uint64_t blobs = 0;  // of the coordinator
};

// Frees those contents on all groups. `done` runs once, on any thread, when every request that had
// them has ended and all is free; at once for none. Both outlive that.
void Unload(const std::vector<Digest>& digests, Engine* engine,
            std::function<void(const ReclaimedBytes&)> done);

// The same for contents that lost their last name, and waits for their blobs to be gone too. One
// that has a name again is waited for no longer: what it freed until then counts.
void Reclaim(const std::vector<RetiredVersion>& gone, Registry* registry, Engine* engine,
             std::function<void(const ReclaimedBytes&)> done);

}  // namespace rootstock
