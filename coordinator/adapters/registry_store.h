// The registry's tables.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/adapters/adapter.h"
#include "coordinator/adapters/alias.h"
#include "coordinator/adapters/disk_reserve.h"
#include "coordinator/adapters/sqlite.h"

namespace rootstock {

// DIR/registry.db. Every change is one durable transaction. Holds DIR/lock: of two owners each
// would sweep the other's blobs. Not thread-safe: the registry's database mutex guards it.
class RegistryStore {
 public:
  struct VersionRow {
    std::string tenant, name;
    uint32_t number = 0;
    Digest digest;
    int64_t registered_ms = 0;
    int64_t last_used_ms = 0;
  };
  struct PinRow {
    std::string tenant, name;
    uint32_t number = 0;
    std::string group;
  };

  // FAILED_PRECONDITION when another process or registry has it open, or a later release wrote it.
  // The disk's reserve is given up for what a start writes.
  static absl::StatusOr<std::unique_ptr<RegistryStore>> Open(const std::filesystem::path& dir);
  ~RegistryStore();

  // Takes the reserve again, once the start has written all.
  void KeepReserve() const { reserve_.Take(); }

  absl::StatusOr<uint64_t> Incarnation();  // 0: never raised, the tables are new
  absl::StatusOr<uint64_t> RaiseIncarnation();
  // How many changes were committed, ever.
  absl::StatusOr<uint64_t> Revision();
  uint64_t log_bytes() const;  // of the write-ahead log

  absl::StatusOr<std::vector<VersionRow>> Versions();
  absl::StatusOr<std::vector<AdapterContent>> Contents();  // those that versions hold
  absl::StatusOr<std::string> Receipt(const Digest& digest);
  absl::StatusOr<std::string> Config(const std::string& tenant, const std::string& name,
                                     uint32_t number);
  // The name's next version; its number.
  absl::StatusOr<uint32_t> Insert(const VersionRow& row, const AdapterContent& content,
                                  const std::string& receipt_json, const std::string& config_json);
  // The highest that the name ever had; 0 for one that never was.
  absl::StatusOr<uint32_t> LastNumber(const std::string& tenant, const std::string& name);
  // The last uses of those that are there. No change of what names mean: the revision stays.
  absl::Status SaveUses(const std::vector<VersionRow>& rows);
  // With their pins. A content's row goes with its last version.
  absl::Status Remove(const std::vector<VersionRow>& rows);

  // The current revision of each alias that is there.
  absl::StatusOr<std::vector<AliasEntry>> Aliases();
  // The newest `limit` revisions, newest first; none for an alias that never was.
  absl::StatusOr<std::vector<AliasEntry>> AliasHistory(const std::string& tenant,
                                                       const std::string& alias, size_t limit);
  absl::StatusOr<std::vector<AliasEntry>> AliasRevision(const std::string& tenant,
                                                        const std::string& alias,
                                                        uint64_t revision);  // none or one
  // `entry` as the alias's next revision; its number.
  absl::StatusOr<uint64_t> InsertAlias(const AliasEntry& entry);

  absl::StatusOr<std::vector<PinRow>> Pins();
  absl::Status InsertPin(const PinRow& pin);
  absl::Status RemovePin(const PinRow& pin);   // one of a group
  absl::Status RemovePins(const PinRow& pin);  // all of the version

  // What is recorded for the base; `fingerprint` itself, now recorded, when nothing was.
  absl::StatusOr<Digest> BaseRecord(const std::string& base, const Digest& fingerprint);

 private:
  static constexpr char kRevision[] = "revision";
  absl::Status Raise(const std::string& key);  // in a transaction
  absl::StatusOr<uint64_t> Meta(const std::string& key);
  absl::Status ChangePins(const char* sql, const PinRow& pin, bool with_group);

  RegistryStore(std::filesystem::path dir, int lock)
      : dir_(std::move(dir)), lock_(lock), reserve_(dir_ / "reserve") {}
  const std::filesystem::path dir_;
  const int lock_;  // descriptor
  const DiskReserve reserve_;
  std::unique_ptr<SqlDatabase> db_;
};

}  // namespace rootstock
