// The registry's tables.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/adapters/adapter.h"
#include "coordinator/adapters/sqlite.h"

namespace rootstock {

// DIR/registry.db. Every change is one durable transaction. Holds DIR/lock: of two owners each
// would sweep the other's blobs. Not thread-safe: the registry's database mutex guards it.
class RegistryStore {
 public:
  struct NameRow {
    std::string tenant, name;
    Digest digest;
    int64_t registered_ms = 0;
  };

  // FAILED_PRECONDITION when another process or registry has it open.
  static absl::StatusOr<std::unique_ptr<RegistryStore>> Open(const std::filesystem::path& dir);
  ~RegistryStore();

  absl::StatusOr<uint64_t> RaiseIncarnation();
  // How many changes were committed, ever.
  absl::StatusOr<uint64_t> Revision();
  absl::StatusOr<std::vector<NameRow>> Names();
  absl::StatusOr<std::vector<AdapterContent>> Contents();  // those that names hold
  absl::StatusOr<std::string> Receipt(const Digest& digest);
  absl::Status Insert(const NameRow& row, const AdapterContent& content,
                      const std::string& receipt_json);
  // The content's row goes with its last name.
  absl::Status Remove(const std::string& tenant, const std::string& name);
  // What is recorded for the base; `fingerprint` itself, now recorded, when nothing was.
  absl::StatusOr<Digest> BaseRecord(const std::string& base, const Digest& fingerprint);

 private:
  absl::Status Raise(const std::string& key);  // in a transaction
  absl::StatusOr<uint64_t> Meta(const std::string& key);

  explicit RegistryStore(int lock) : lock_(lock) {}
  const int lock_;  // descriptor
  std::unique_ptr<SqlDatabase> db_;
};

}  // namespace rootstock
