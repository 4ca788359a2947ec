// Names, contents and fingerprints that outlive the process: DESIGN §5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/adapters/adapter.h"

namespace rootstock {

class RegistryMetrics;

struct RegistryOptions {
  std::filesystem::path data_dir;
  std::filesystem::path adapter_root;  // empty: clients can't register by path
  std::string base_name;               // the served model's name: no adapter may have it
  AdapterLoader loader;
  std::function<int64_t()> unix_ms;          // wall clock, for what people read
  std::shared_ptr<RegistryMetrics> metrics;  // may be null
};

struct AdapterEntry {
  std::string name;
  std::string tenant;
  AdapterState state = AdapterState::kActive;
  Digest digest;
  uint64_t blob_bytes = 0;
  std::string receipt_json;  // empty in a list
  int64_t registered_unix_ms = 0;
  int64_t last_used_unix_ms = 0;  // since the coordinator's start; 0: never
};

struct UnregisteredAdapter {
  Digest digest;
  uint64_t freed_bytes = 0;  // 0 while another name holds the same content
  bool last_name = false;    // no name holds the content any more
};

// SQLite in WAL mode, synchronous FULL: what was acknowledged survives any crash, what failed
// left nothing. Content lies in DATA/blobs by digest. *Thread-safe*; Resolve, FindDigest and List
// never wait for a disk.
class Registry {
 public:
  // Raises the incarnation durably. ALREADY_EXISTS/name_taken when an adapter has the base's name.
  static absl::StatusOr<std::unique_ptr<Registry>> Open(RegistryOptions options);
  ~Registry();

  uint64_t incarnation() const;

  // `path` as a client gives it, under --adapter-root. Same content under the same name again
  // succeeds; other content is ALREADY_EXISTS/name_taken. Refusals carry the loader's reason.
  absl::StatusOr<AdapterEntry> Register(const std::string& name, const std::string& path,
                                        const std::string& tenant);
  // The same for a directory that the operator named.
  absl::StatusOr<AdapterEntry> RegisterDirectory(const std::string& name,
                                                 const std::filesystem::path& directory,
                                                 const std::string& tenant);
  absl::StatusOr<UnregisteredAdapter> Unregister(const std::string& name,
                                                 const std::string& tenant);
  absl::StatusOr<AdapterEntry> Get(const std::string& name, const std::string& tenant) const;
  // At most `limit` entries whose names come after `after`, by name.
  std::vector<AdapterEntry> List(const std::string& tenant, const std::string& after,
                                 size_t limit) const;
  size_t size() const;  // names, all tenants

  // Binds a name to its content. NOT_FOUND/unknown_model, the same text for foreign names.
  absl::StatusOr<AdapterHandle> Resolve(const std::string& name, const std::string& tenant);
  // Null when no name and nothing in flight holds it.
  AdapterHandle FindDigest(const Digest& digest);
  bool HasName(const Digest& digest) const;
  // For the blob service; keep the handle while reading.
  std::filesystem::path BlobPath(const Digest& digest) const;

  // The base's record: written at the first call, equal ever after. FAILED_PRECONDITION /
  // group_mismatch with both fingerprints.
  absl::Status CheckBase(const Digest& fingerprint);

 private:
  struct Impl;
  explicit Registry(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rootstock
