// Names, contents and fingerprints that outlive the process: DESIGN §5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/adapter_ref.h"
#include "coordinator/adapters/adapter.h"
#include "coordinator/adapters/alias.h"
#include "coordinator/content/blob_store.h"

namespace rootstock {

class AdapterSources;
class RegistryMetrics;

struct RegistryOptions {
  std::filesystem::path data_dir;
  std::filesystem::path adapter_root;  // empty: clients can't register by path
  AdapterSources* sources = nullptr;   // borrowed; null: clients can't register by URI
  std::string base_name;               // the served model's name: nothing else may have it
  AdapterLoader loader;
  BlobStoreOptions blobs;
  uint64_t max_tenant_bytes = 0;             // of a tenant's contents; 0: no limit
  std::function<int64_t()> unix_ms;          // wall clock, for what people read
  std::shared_ptr<RegistryMetrics> metrics;  // may be null
};

// One version of an adapter.
struct AdapterEntry {
  std::string name;
  uint32_t version = 0;
  std::string tenant;
  AdapterState state = AdapterState::kActive;
  Digest digest;
  uint64_t blob_bytes = 0;
  std::string receipt_json;        // of the content; empty in a list
  std::string config_json = "{}";  // of the version's own directory; empty in a list
  std::string stored_in;  // "coordinator", its disk; "object", its store only; empty: it is lost
  int64_t registered_unix_ms = 0;
  int64_t last_used_unix_ms = 0;     // 0: never
  bool newest = false;               // what the bare name means
  std::vector<std::string> pins;     // groups that it is pinned on; "": all of them
  std::vector<std::string> aliases;  // that have it among their targets
};

struct RetiredVersion {
  uint32_t version = 0;
  Digest digest;
  uint64_t blob_bytes = 0;
  bool last_name = false;  // no version has the content any more: it may go everywhere
};

// What a request's `model` was bound to.
struct BoundModel {
  AdapterHandle content;
  std::string resolved;  // "NAME@N"
};

// Pinned contents; one digest may be there several times.
struct PinnedContent {
  Digest digest;
  std::string group;  // "": all groups
};

// SQLite in WAL mode, synchronous FULL: what was acknowledged survives any crash, what failed
// left nothing. Content lies in DATA/blobs by digest. *Thread-safe*; Resolve, FindDigest, the
// lists and Pins never wait for a disk.
//
// Where a call takes a version, 0 means the newest active one. Unknown and foreign names are
// NOT_FOUND/unknown_model in the same words; an alias where an adapter is wanted is
// INVALID_ARGUMENT. INTERNAL/io_error when the disk fails, RESOURCE_EXHAUSTED/no_space when it is
// full.
class Registry {
 public:
  // Raises the incarnation durably. ALREADY_EXISTS/name_taken when an adapter or alias has the
  // base's name.
  static absl::StatusOr<std::unique_ptr<Registry>> Open(RegistryOptions options);
  ~Registry();  // after all that asks for handles: those that are out are counted as leaks

  uint64_t incarnation() const;

  // ---- Adapters and their versions

  // `path` as a client gives it, under --adapter-root, or a URI in an allowed store. The content
  // that the newest version has succeeds and changes nothing; other content is
  // ALREADY_EXISTS/name_taken, or with `new_version` the next version, the newest from then on.
  // Refusals carry the loader's reason.
  absl::StatusOr<AdapterEntry> Register(const std::string& name, const std::string& path,
                                        const std::string& tenant, bool new_version = false);
  // The same for a URI of the coordinator's own (AdapterSources::FetchOwn).
  absl::StatusOr<AdapterEntry> RegisterOwnUri(const std::string& name, const std::string& uri,
                                              const std::string& tenant);
  // The same for a directory that the operator named.
  absl::StatusOr<AdapterEntry> RegisterDirectory(const std::string& name,
                                                 const std::filesystem::path& directory,
                                                 const std::string& tenant,
                                                 bool new_version = false);
  // The same for content from anywhere. `source` runs on this thread while no other registration
  // of the name does.
  absl::StatusOr<AdapterEntry> RegisterFrom(
      const std::string& name, const std::string& tenant, bool new_version,
      const std::function<absl::StatusOr<LoadedAdapter>()>& source);
  // Version 0: all. New requests don't find them from then on; pins go too. None for what was
  // there once and is gone: a call may be made again. FAILED_PRECONDITION/name_taken while an alias
  // names one of them.
  absl::StatusOr<std::vector<RetiredVersion>> Unregister(const std::string& name,
                                                         const std::string& tenant,
                                                         uint32_t version = 0);
  // The contents that may leave every group. FAILED_PRECONDITION for a version that is pinned;
  // one that another name has pinned is left out.
  absl::StatusOr<std::vector<Digest>> Unloadable(const std::string& name, const std::string& tenant,
                                                 uint32_t version = 0) const;
  absl::StatusOr<AdapterEntry> Get(const std::string& name, const std::string& tenant,
                                   uint32_t version = 0) const;
  // At most `limit` versions that come after `after`, by name and number.
  std::vector<AdapterEntry> List(const std::string& tenant, const AdapterRef& after,
                                 size_t limit) const;
  size_t size() const;  // adapters' names, all tenants

  // ---- Aliases. `expected`: the revision that the caller has seen; another one is
  // ABORTED, 0 takes any. A change that was made already succeeds again.

  absl::StatusOr<AliasEntry> SetAlias(const std::string& alias, const std::string& tenant,
                                      std::vector<AliasTarget> targets, uint64_t expected = 0);
  // As a new revision, the targets of revision `to` (0: of the one before the current one).
  // FAILED_PRECONDITION when there is none, or one of its targets is gone.
  absl::StatusOr<AliasEntry> RollbackAlias(const std::string& alias, const std::string& tenant,
                                           uint64_t to = 0, uint64_t expected = 0);
  // OK for one that was removed before: a call may be made again.
  absl::Status RemoveAlias(const std::string& alias, const std::string& tenant,
                           uint64_t expected = 0);
  absl::StatusOr<AliasEntry> GetAlias(const std::string& alias, const std::string& tenant) const;
  std::vector<AliasEntry> ListAliases(const std::string& tenant, const std::string& after,
                                      size_t limit) const;
  // The newest `limit` revisions, newest first.
  absl::StatusOr<std::vector<AliasEntry>> AliasHistory(const std::string& alias,
                                                       const std::string& tenant,
                                                       size_t limit) const;

  // ---- Pins. Group "": all groups.

  absl::StatusOr<AdapterEntry> Pin(const std::string& name, const std::string& tenant,
                                   uint32_t version, const std::string& group);
  // Group "" takes all pins of the version away. FAILED_PRECONDITION/name_taken for one group of a
  // version that is pinned on all.
  absl::StatusOr<AdapterEntry> Unpin(const std::string& name, const std::string& tenant,
                                     uint32_t version, const std::string& group);
  std::vector<PinnedContent> Pins() const;

  // ---- What requests and groups ask

  // NAME, NAME@N or ALIAS; `request_id` chooses among an alias's targets. NOT_FOUND;
  // FAILED_PRECONDITION/io_error when the stored content is lost.
  absl::StatusOr<BoundModel> Resolve(const std::string& model, const std::string& tenant,
                                     const std::string& request_id);
  // Null when no version and nothing in flight holds it.
  AdapterHandle FindDigest(const Digest& digest);
  bool HasName(const Digest& digest) const;
  // Whether a name is the base's, an adapter's or an alias's.
  bool HasModel(const std::string& name, const std::string& tenant) const;
  // `done` runs once, on any thread: with true when no name and no handle holds the content any
  // more, with false as soon as a name does (again); at once if either is so.
  void WhenGone(const Digest& digest, std::function<void(bool gone)> done);
  // Makes the last uses durable that are not yet: one write, however many. So does the destructor;
  // a crash forgets those since the last call.
  absl::Status SaveUses();
  // Handles that are out though nothing should run any more: logged and counted.
  size_t CountLeaks() const;
  // Content from its first byte; may wait for the object store. NOT_FOUND when no version and
  // nothing in flight holds it, or none does any more when it has come; BlobStore::Read's errors.
  absl::StatusOr<std::ifstream> ReadContent(const Digest& digest);
  // Whether the disk has it for ReadContent. Never waits.
  bool IsOnDisk(const Digest& digest) const;
  // What ReadContent gave was not the content: see BlobStore::Doubt.
  void DoubtContent(const Digest& digest);
  // What waits for the object store ends soon.
  void CancelReads();
  // Waits until content that nothing holds any more is off the disk.
  void AwaitRemovals();

  // The base's record: written at the first call, equal ever after. FAILED_PRECONDITION /
  // group_mismatch with both fingerprints.
  absl::Status CheckBase(const Digest& fingerprint);

 private:
  absl::StatusOr<AdapterEntry> RegisterUri(const std::string& name, const std::string& uri,
                                           const std::string& tenant, bool new_version, bool own);

  struct Impl;
  explicit Registry(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rootstock
