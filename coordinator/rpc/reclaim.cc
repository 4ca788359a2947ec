#include "coordinator/rpc/reclaim.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

namespace rootstock {
namespace {

// Adds up the parts of one call and tells when all have come. Thread-safe.
class Sum {
 public:
  Sum(size_t parts, std::function<void(const ReclaimedBytes&)> done)
      : left_(parts), done_(std::move(done)) {
    if (left_ == 0) done_(bytes_);
  }

  void Add(const UnloadedBytes& groups, uint64_t blob) {
    {
      const std::lock_guard lock(mutex_);
      bytes_.groups.device += groups.device;
      bytes_.groups.host += groups.host;
      bytes_.groups.disk += groups.disk;
      bytes_.blobs += blob;
      if (--left_ > 0) return;
    }
    done_(bytes_);  // the last one: nobody else writes
  }

 private:
  std::mutex mutex_;
  size_t left_;
  ReclaimedBytes bytes_;
  const std::function<void(const ReclaimedBytes&)> done_;
};

}  // namespace

void Unload(const std::vector<Digest>& digests, Engine* engine,
            std::function<void(const ReclaimedBytes&)> done) {
  const auto sum = std::make_shared<Sum>(digests.size(), std::move(done));
  for (const Digest& digest : digests) {
    engine->Unload(digest, [sum](const UnloadedBytes& freed) { sum->Add(freed, 0); });
  }
}

void Reclaim(const std::vector<RetiredVersion>& gone, Registry* registry, Engine* engine,
             std::function<void(const ReclaimedBytes&)> done) {
  const auto nameless =
      std::count_if(gone.begin(), gone.end(), [](const RetiredVersion& v) { return v.last_name; });
  const auto sum = std::make_shared<Sum>(static_cast<size_t>(nameless), std::move(done));
  for (const RetiredVersion& version : gone) {
    if (!version.last_name) continue;
    engine->Unload(version.digest, [sum, registry, version](const UnloadedBytes& freed) {
      // Registered again meanwhile, its blob stays.
      const uint64_t blob = registry->HasName(version.digest) ? 0 : version.blob_bytes;
      registry->WhenIdle(version.digest, [sum, freed, blob] { sum->Add(freed, blob); });
    });
  }
}

}  // namespace rootstock
