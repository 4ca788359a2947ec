#include "coordinator/adapters/contents.h"

namespace rootstock {

AdapterHandle Contents::MakeHandle(Content& content) {
  if (++content.handles == 1 && content.names == 0) Count(AdapterState::kRetired, 1);
  return AdapterHandle(content.content.get(),
                       [self = shared_from_this(), keep = content.content](const AdapterContent*) {
                         self->Release(keep->digest);
                       });
}

void Contents::Release(const Digest& digest) {
  std::vector<std::function<void()>> idle;
  {
    const std::lock_guard lock(mutex);
    Content& content = by_digest.at(digest);
    if (--content.handles == 0) {
      if (content.names == 0) Count(AdapterState::kRetired, -1);
      idle.swap(content.when_idle);
    }
    RemoveIfUnused(digest);
  }
  for (const auto& done : idle) done();
}

void Contents::RemoveIfUnused(const Digest& digest) {
  const auto it = by_digest.find(digest);
  if (it == by_digest.end() || it->second.names > 0 || it->second.handles > 0) return;
  blobs.Remove(digest);
  by_digest.erase(it);
}

void Contents::WhenIdle(const Digest& digest, std::function<void()> done) {
  {
    const std::lock_guard lock(mutex);
    const auto it = by_digest.find(digest);
    if (it != by_digest.end() && it->second.handles > 0) {
      it->second.when_idle.push_back(std::move(done));
      return;
    }
  }
  done();
}

}  // namespace rootstock
