// What the registry holds in memory beside its tables.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "coordinator/adapters/blob_store.h"
#include "coordinator/adapters/registry.h"
#include "coordinator/adapters/registry_metrics.h"
#include "coordinator/adapters/registry_store.h"

namespace rootstock {

// Thread-safe by the locks that it names.
struct Registry::Impl {
  using Key = std::pair<std::string, std::string>;  // tenant, name

  struct Name {
    Digest digest;
    AdapterState state = AdapterState::kStaged;
    int64_t registered_ms = 0;
    int64_t last_used_ms = 0;
  };
  struct Content {
    std::shared_ptr<const AdapterContent> content;
    int names = 0;
    int handles = 0;  // in flight
  };
  // What handles outlive the registry with.
  struct Shared {
    explicit Shared(std::filesystem::path dir) : blobs(std::move(dir)) {}
    BlobStore blobs;
    std::shared_ptr<RegistryMetrics> metrics;
    std::mutex mutex;
    std::map<Digest, Content> contents;

    void Count(AdapterState state, int by) const {
      if (metrics) metrics->Moved(state, by);
    }
    // Under the mutex: nobody can take up the content between the look and the removal.
    void RemoveIfUnused(const Digest& digest) {
      const auto it = contents.find(digest);
      if (it == contents.end() || it->second.names > 0 || it->second.handles > 0) return;
      blobs.Remove(digest);
      contents.erase(it);
    }
  };

  explicit Impl(RegistryOptions o)
      : options(std::move(o)), shared(std::make_shared<Shared>(options.data_dir / "blobs")) {
    shared->metrics = options.metrics;
  }

  AdapterHandle MakeHandle(Content& content);
  void Move(Name& name, AdapterState to);
  absl::Status Load();
  // Under the database's mutex: one change of the tables, timed.
  absl::Status Commit(const std::function<absl::Status()>& change);
  absl::Status ShowRevision();
  absl::StatusOr<AdapterEntry> Store(const Key& key, const LoadedAdapter& loaded);
  absl::StatusOr<bool> AlreadyThere(const Key& key, const Digest& digest) const;
  AdapterEntry Describe(const Key& key, const Name& name) const;

  RegistryOptions options;
  std::shared_ptr<Shared> shared;
  // Lock order: database, then shared->mutex. `names` and `staged` are under the latter.
  std::mutex database_mutex;
  std::unique_ptr<RegistryStore> store;
  std::map<Key, Name> names;
  std::set<Key> staged;
  std::condition_variable staged_changed;
  uint64_t incarnation = 0;
};

}  // namespace rootstock
