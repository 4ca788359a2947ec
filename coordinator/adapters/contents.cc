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
  std::vector<std::function<void(bool)>> waiting;
  {
    const std::lock_guard lock(mutex);
    Content& content = by_digest.at(digest);
    if (--content.handles == 0 && content.names == 0) {
      Count(AdapterState::kRetired, -1);
      waiting.swap(content.when_gone);
    }
    RemoveIfUnused(digest);
  }
  for (const auto& done : waiting) done(/*gone=*/true);
}

void Contents::RemoveIfUnused(const Digest& digest) {
  const auto it = by_digest.find(digest);
  if (it == by_digest.end() || it->second.names > 0 || it->second.handles > 0) return;
  if (it->second.stored && metrics) metrics->Stored(-1, it->second.content->blob_bytes);
  blobs.Remove(digest);
  by_digest.erase(it);
}

void Contents::WhenGone(const Digest& digest, std::function<void(bool gone)> done) {
  bool named = false;
  {
    const std::lock_guard lock(mutex);
    const auto it = by_digest.find(digest);
    named = it != by_digest.end() && it->second.names > 0;
    if (it != by_digest.end() && !named) {
      it->second.when_gone.push_back(std::move(done));
      return;
    }
  }
  done(!named);
}

}  // namespace rootstock
