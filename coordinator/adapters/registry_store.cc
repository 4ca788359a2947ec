#include "coordinator/adapters/registry_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/adapters/registry_codec.h"
#include "coordinator/adapters/registry_schema.h"

namespace rootstock {
namespace {

constexpr char kIncarnation[] = "incarnation";

absl::Status BadData(const std::filesystem::path& dir, const std::string& text) {
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kIoError, "data", dir.string(),
                   text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RegistryStore>> RegistryStore::Open(
    const std::filesystem::path& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return BadData(dir, error.message());
  const int lock = open((dir / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock < 0) return BadData(dir, std::strerror(errno));
  std::unique_ptr<RegistryStore> store(new RegistryStore(dir, lock));
  // Gone with the process, however it ends.
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    return BadData(dir,
                   errno == EWOULDBLOCK ? "another coordinator uses it" : std::strerror(errno));
  }
  store->reserve_.GiveUp();
  ASSIGN_OR_RETURN(store->db_, SqlDatabase::Open(dir / "registry.db"));
  RETURN_IF_ERROR(Annotate(PrepareSchema(*store->db_), absl::StrCat("data=", dir.string())));
  return store;
}

RegistryStore::~RegistryStore() {
  db_.reset();
  close(lock_);
}

absl::StatusOr<uint64_t> RegistryStore::Incarnation() { return Meta(kIncarnation); }

absl::StatusOr<uint64_t> RegistryStore::RaiseIncarnation() {
  SqlTransaction transaction(*db_);
  RETURN_IF_ERROR(transaction.begun());
  RETURN_IF_ERROR(Raise(kIncarnation));
  ASSIGN_OR_RETURN(const uint64_t value, Meta(kIncarnation));
  RETURN_IF_ERROR(transaction.Commit());
  return value;
}

absl::StatusOr<uint64_t> RegistryStore::Revision() { return Meta(kRevision); }

absl::Status RegistryStore::Raise(const std::string& key) {
  return SqlStatement(db_->get(),
                      "INSERT INTO meta VALUES(?, 1) "
                      "ON CONFLICT(key) DO UPDATE SET value = value + 1")
      .BindText(key)
      .Run();
}

// 0 for a key that was never raised.
absl::StatusOr<uint64_t> RegistryStore::Meta(const std::string& key) {
  SqlStatement read(db_->get(), "SELECT value FROM meta WHERE key = ?");
  read.BindText(key);
  ASSIGN_OR_RETURN(const bool row, read.Next());
  return row ? static_cast<uint64_t>(read.Int(0)) : 0;
}

uint64_t RegistryStore::log_bytes() const {
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(dir_ / "registry.db-wal", error);
  return error ? 0 : bytes;
}

absl::StatusOr<std::vector<RegistryStore::VersionRow>> RegistryStore::Versions() {
  SqlStatement read(
      db_->get(), "SELECT tenant, name, number, digest, registered_ms, last_used_ms FROM versions");
  std::vector<VersionRow> out;
  for (;;) {
    ASSIGN_OR_RETURN(const bool row, read.Next());
    if (!row) return out;
    ASSIGN_OR_RETURN(const Digest digest, ToDigest(read.Blob(3)));
    out.push_back({read.Text(0), read.Text(1), static_cast<uint32_t>(read.Int(2)), digest,
                   read.Int(4), read.Int(5)});
  }
}

absl::StatusOr<std::vector<AdapterContent>> RegistryStore::Contents() {
  SqlStatement read(db_->get(), "SELECT digest, modules, blob_bytes FROM contents");
  std::vector<AdapterContent> out;
  for (;;) {
    ASSIGN_OR_RETURN(const bool row, read.Next());
    if (!row) return out;
    ASSIGN_OR_RETURN(const Digest digest, ToDigest(read.Blob(0)));
    ASSIGN_OR_RETURN(LoraSpec spec, UnpackSpec(read.Blob(1)));
    out.push_back({digest, std::move(spec), static_cast<uint64_t>(read.Int(2))});
  }
}

absl::StatusOr<std::string> RegistryStore::Receipt(const Digest& digest) {
  SqlStatement read(db_->get(), "SELECT receipt FROM contents WHERE digest = ?");
  read.BindBlob(DigestBytes(digest));
  ASSIGN_OR_RETURN(const bool row, read.Next());
  if (!row) return CorruptRegistry("an adapter without content");
  return read.Text(0);
}

absl::StatusOr<std::string> RegistryStore::Config(const std::string& tenant,
                                                  const std::string& name, uint32_t number) {
  SqlStatement read(db_->get(),
                    "SELECT config FROM versions WHERE tenant = ? AND name = ? AND number = ?");
  read.BindText(tenant).BindText(name).Bind(number);
  ASSIGN_OR_RETURN(const bool row, read.Next());
  if (!row) return CorruptRegistry("an adapter without a version");
  return read.Text(0);
}

absl::StatusOr<uint32_t> RegistryStore::Insert(const VersionRow& row, const AdapterContent& content,
                                               const std::string& receipt_json,
                                               const std::string& config_json) {
  SqlTransaction transaction(*db_);
  RETURN_IF_ERROR(transaction.begun());
  RETURN_IF_ERROR(SqlStatement(db_->get(),
                               "INSERT INTO contents(digest, blob_bytes, modules, receipt) "
                               "VALUES(?, ?, ?, ?) ON CONFLICT(digest) DO NOTHING")
                      .BindBlob(DigestBytes(content.digest))
                      .Bind(static_cast<int64_t>(content.blob_bytes))
                      .BindBlob(PackSpec(content.spec))
                      .BindText(receipt_json)
                      .Run());
  uint32_t number = 0;
  {
    SqlStatement next(db_->get(),
                      "INSERT INTO names(tenant, name, last_number) VALUES(?, ?, 1) "
                      "ON CONFLICT(tenant, name) DO UPDATE SET last_number = last_number + 1 "
                      "RETURNING last_number");
    next.BindText(row.tenant).BindText(row.name);
    ASSIGN_OR_RETURN(const bool there, next.Next());
    if (!there) return CorruptRegistry("a name without a number");
    number = static_cast<uint32_t>(next.Int(0));
    RETURN_IF_ERROR(next.Run());
  }
  RETURN_IF_ERROR(SqlStatement(db_->get(),
                               "INSERT INTO versions"
                               "(tenant, name, number, digest, registered_ms, config) "
                               "VALUES(?, ?, ?, ?, ?, ?)")
                      .BindText(row.tenant)
                      .BindText(row.name)
                      .Bind(number)
                      .BindBlob(DigestBytes(row.digest))
                      .Bind(row.registered_ms)
                      .BindText(config_json)
                      .Run());
  RETURN_IF_ERROR(Raise(kRevision));
  RETURN_IF_ERROR(transaction.Commit());
  return number;
}

absl::StatusOr<uint32_t> RegistryStore::LastNumber(const std::string& tenant,
                                                   const std::string& name) {
  SqlStatement read(db_->get(), "SELECT last_number FROM names WHERE tenant = ? AND name = ?");
  read.BindText(tenant).BindText(name);
  ASSIGN_OR_RETURN(const bool row, read.Next());
  return row ? static_cast<uint32_t>(read.Int(0)) : 0;
}

absl::Status RegistryStore::SaveUses(const std::vector<VersionRow>& rows) {
  SqlTransaction transaction(*db_);
  RETURN_IF_ERROR(transaction.begun());
  for (const VersionRow& row : rows) {
    RETURN_IF_ERROR(SqlStatement(db_->get(),
                                 "UPDATE versions SET last_used_ms = ? "
                                 "WHERE tenant = ? AND name = ? AND number = ?")
                        .Bind(row.last_used_ms)
                        .BindText(row.tenant)
                        .BindText(row.name)
                        .Bind(row.number)
                        .Run());
  }
  return transaction.Commit();
}

absl::Status RegistryStore::Remove(const std::vector<VersionRow>& rows) {
  SqlTransaction transaction(*db_);
  RETURN_IF_ERROR(transaction.begun());
  for (const VersionRow& row : rows) {
    RETURN_IF_ERROR(
        SqlStatement(db_->get(),
                     "DELETE FROM versions WHERE tenant = ? AND name = ? AND number = ?")
            .BindText(row.tenant)
            .BindText(row.name)
            .Bind(row.number)
            .Run());
    RETURN_IF_ERROR(SqlStatement(db_->get(),
                                 "DELETE FROM contents WHERE digest = ?1 AND NOT EXISTS "
                                 "(SELECT 1 FROM versions WHERE digest = ?1)")
                        .BindBlob(DigestBytes(row.digest))
                        .Run());
  }
  RETURN_IF_ERROR(Raise(kRevision));
  return transaction.Commit();
}

absl::StatusOr<Digest> RegistryStore::BaseRecord(const std::string& base,
                                                 const Digest& fingerprint) {
  {
    SqlStatement read(db_->get(), "SELECT fingerprint FROM bases WHERE name = ?");
    read.BindText(base);
    ASSIGN_OR_RETURN(const bool row, read.Next());
    if (row) return ToDigest(read.Blob(0));
  }
  RETURN_IF_ERROR(SqlStatement(db_->get(), "INSERT INTO bases(name, fingerprint) VALUES(?, ?)")
                      .BindText(base)
                      .BindBlob(DigestBytes(fingerprint))
                      .Run());
  return fingerprint;
}

}  // namespace rootstock
