#include "coordinator/rpc/reclaim.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
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

// One content's part of a Reclaim: told when the groups have freed it and it is gone, or at once
// when a name holds it again. Thread-safe.
class Part {
 public:
  Part(std::shared_ptr<Sum> sum, uint64_t blob_bytes)
      : sum_(std::move(sum)), blob_bytes_(blob_bytes) {}

  void Freed(const UnloadedBytes& freed) {
    Tell([&] { freed_ = freed; });
  }
  void Left(bool gone) {
    Tell([&] { (gone ? gone_ : named_) = true; });
  }

 private:
  void Tell(const std::function<void()>& news) {
    std::unique_lock lock(mutex_);
    news();
    if (told_ || !(named_ || (gone_ && freed_))) return;
    told_ = true;
    const UnloadedBytes freed = freed_.value_or(UnloadedBytes());
    const uint64_t blob = gone_ ? blob_bytes_ : 0;
    lock.unlock();
    sum_->Add(freed, blob);
  }

  const std::shared_ptr<Sum> sum_;
  const uint64_t blob_bytes_;
  std::mutex mutex_;
  std::optional<UnloadedBytes> freed_;
  bool gone_ = false, named_ = false, told_ = false;
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
    const auto part = std::make_shared<Part>(sum, version.blob_bytes);
    registry->WhenGone(version.digest, [part](bool gone) { part->Left(gone); });
    engine->Unload(version.digest, [part](const UnloadedBytes& freed) { part->Freed(freed); });
  }
}

}  // namespace rootstock
