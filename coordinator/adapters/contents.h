// Contents that names hold or requests use, with their blobs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "coordinator/adapters/adapter.h"
#include "coordinator/adapters/registry_metrics.h"
#include "coordinator/content/blob_store.h"

namespace rootstock {

// Owned by the registry and by every handle: what is in flight may outlive the registry.
// `mutex` guards all but the blobs, and the registry's names too. Thread-safe.
struct Contents : std::enable_shared_from_this<Contents> {
  struct Content {
    std::shared_ptr<const AdapterContent> content;
    int names = 0;                                     // versions that are this content
    int handles = 0;                                   // in flight
    bool lost = false;                                 // its blob was found missing or cut at start
    bool stored = false;                               // counted as such
    std::vector<std::function<void(bool)>> when_gone;  // none while a name holds it
  };

  Contents(std::filesystem::path dir, BlobStoreOptions options)
      : blobs(std::move(dir), std::move(options)) {}

  // Under the mutex.
  AdapterHandle MakeHandle(Content& content);
  // Nobody can take up the content between the look and the removal.
  void RemoveIfUnused(const Digest& digest);
  void Count(AdapterState state, int by) const {
    if (metrics) metrics->Moved(state, by);
  }

  // Under the mutex: its blob is where it is kept.
  void CountStored(Content& content) const {
    if (!std::exchange(content.stored, true) && metrics) {
      metrics->Stored(1, content.content->blob_bytes);
    }
  }

  // Takes the mutex. `done` runs once, with no lock held: with true when neither a name nor a
  // handle holds the content, with false as soon as a name does; here when either is so now.
  void WhenGone(const Digest& digest, std::function<void(bool gone)> done);

  BlobStore blobs;
  std::shared_ptr<RegistryMetrics> metrics;
  std::mutex mutex;
  std::map<Digest, Content> by_digest;

 private:
  void Release(const Digest& digest);
};

}  // namespace rootstock
