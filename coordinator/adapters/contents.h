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
    int names = 0;      // versions that are this content
    int handles = 0;    // in flight
    bool lost = false;  // its blob was found missing or cut at start
    std::vector<std::function<void()>> when_idle;
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

  // Takes the mutex. `done` runs once, with no lock held, when no handle of the content is out:
  // here when that is now, else where the last one goes.
  void WhenIdle(const Digest& digest, std::function<void()> done);

  BlobStore blobs;
  std::shared_ptr<RegistryMetrics> metrics;
  std::mutex mutex;
  std::map<Digest, Content> by_digest;

 private:
  void Release(const Digest& digest);
};

}  // namespace rootstock
