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
#include <vector>

#include "coordinator/adapters/contents.h"
#include "coordinator/adapters/names.h"
#include "coordinator/adapters/registry.h"
#include "coordinator/adapters/registry_metrics.h"
#include "coordinator/adapters/registry_store.h"
#include "coordinator/adapters/tenant_bytes.h"

namespace rootstock {

// A change is decided, committed and shown under `database_mutex`; the names and contents in
// memory change under `contents->mutex` only after the commit, at once. Thread-safe by the locks
// that it names.
struct Registry::Impl {
  using Key = Names::Key;

  explicit Impl(RegistryOptions o)
      : options(std::move(o)),
        contents(std::make_shared<Contents>(options.data_dir / "blobs", options.blobs)) {
    contents->metrics = options.metrics;
  }

  absl::Status Load();
  absl::Status CheckNothingIsThere() const;  // for new tables
  absl::Status LoadVersions();
  absl::Status LoadAliasesAndPins();
  absl::Status CheckNotBase(const std::string& tenant, const std::string& name) const;

  void Move(Names::Version& version, AdapterState to);
  // Under the database's mutex: one change of the tables, timed.
  absl::Status Commit(const std::function<absl::Status()>& change);
  absl::Status ShowRevision();
  void CountPinned(int by) const;
  AdapterEntry Describe(const Key& key, uint32_t number, const Names::Version& version) const;

  // A fetch for a name, which may take minutes: other registrations of the name don't wait for it,
  // and it has few beside it, so that clients who try again can't take every thread.
  absl::Status BeginFetch(const Key& key);
  void EndFetch(const Key& key);

  void CountStaged(int by);
  void CountRejected(const absl::Status& status) const;
  // One registration of a name at a time; the next one then finds the first one's content. What a
  // source waits for, as memory, nobody may hold who still waits for the turn: it runs in it.
  absl::StatusOr<AdapterEntry> RegisterInTurn(
      const Key& key, bool new_version,
      const std::function<absl::StatusOr<LoadedAdapter>()>& source);

  // What a registration of `digest` under a name comes to, as names are now.
  enum class Registration { kNext, kThere, kHeal };
  struct Decision {
    Registration what = Registration::kNext;
    uint32_t number = 0;  // of the version that is there
  };
  absl::StatusOr<Decision> Decide(const Key& key, const LoadedAdapter& loaded, bool new_version);
  absl::Status CheckTenantBytes(const std::string& tenant, const LoadedAdapter& loaded) const;
  absl::StatusOr<AdapterEntry> Store(const Key& key, const LoadedAdapter& loaded, bool new_version);
  AdapterEntry ShowRegistered(const Key& key, uint32_t number, const LoadedAdapter& loaded,
                              int64_t now);
  void Heal(const Digest& digest);

  // Under the database's mutex. `entry` has the targets; commits and shows its next revision.
  absl::StatusOr<AliasEntry> ChangeAlias(AliasEntry entry);
  absl::StatusOr<Names::Alias> FindAlias(const Key& key) const;
  absl::StatusOr<Names::Alias> FindAliasAt(const Key& key, uint64_t expected) const;
  absl::StatusOr<AliasEntry> TrySetAlias(const Key& key, std::vector<AliasTarget> targets,
                                         uint64_t expected);
  absl::StatusOr<AliasEntry> TryRollback(const Key& key, uint64_t to, uint64_t expected);
  absl::Status TryRemoveAlias(const Key& key, uint64_t expected);
  // Under the mutex.
  void NoteUse(const Key& key, uint32_t number, Names::Version& version);
  void CountFlip(const absl::Status& status) const;

  absl::StatusOr<AdapterEntry> ChangePins(const Key& key, uint32_t number, const std::string& group,
                                          bool pinned);

  RegistryOptions options;
  std::shared_ptr<Contents> contents;
  // Lock order: database, then contents->mutex. `names`, `tenant_bytes`, `used`, `fetching` and
  // `staged` are under the latter.
  std::mutex database_mutex;
  std::unique_ptr<RegistryStore> store;
  Names names;
  TenantBytes tenant_bytes;
  std::vector<std::pair<Key, uint32_t>> used;  // versions whose last use is not saved
  std::map<Key, int> fetching;                 // how many
  std::set<Key> staged;
  std::condition_variable staged_changed;
  uint64_t incarnation = 0;
};

}  // namespace rootstock
