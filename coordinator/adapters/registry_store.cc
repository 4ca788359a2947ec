#include "coordinator/adapters/registry_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr char kSchema[] = R"(
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS bases(name TEXT PRIMARY KEY, fingerprint BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS contents(
  digest BLOB PRIMARY KEY, blob_bytes INTEGER NOT NULL, modules BLOB NOT NULL,
  receipt TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS adapters(
  tenant TEXT NOT NULL, name TEXT NOT NULL, digest BLOB NOT NULL REFERENCES contents(digest),
  registered_ms INTEGER NOT NULL, PRIMARY KEY(tenant, name));
CREATE INDEX IF NOT EXISTS adapters_by_digest ON adapters(digest);
)";

constexpr char kIncarnation[] = "incarnation";
constexpr char kRevision[] = "revision";

std::string_view Bytes(const Digest& d) {
  return {reinterpret_cast<const char*>(d.bytes.data()), d.bytes.size()};
}

absl::Status Corrupt(const char* what) {
  return MakeError(absl::StatusCode::kDataLoss, Reason::kIoError, "registry", "", what);
}

absl::StatusOr<Digest> ToDigest(const std::string& bytes) {
  Digest d;
  if (bytes.size() != d.bytes.size()) return Corrupt("a digest of another length");
  std::memcpy(d.bytes.data(), bytes.data(), bytes.size());
  return d;
}

// layer, module, lora_rank, scale: 16 bytes each.
struct PackedModule {
  int32_t layer, module, lora_rank;
  float scale;
};
static_assert(sizeof(PackedModule) == 16);

std::string Pack(const LoraSpec& spec) {
  std::string out;
  for (const LoraModule& m : spec.modules) {
    const PackedModule p{m.layer, static_cast<int32_t>(m.module), m.lora_rank, m.scale};
    out.append(reinterpret_cast<const char*>(&p), sizeof(p));
  }
  return out;
}

absl::StatusOr<LoraSpec> Unpack(const std::string& bytes) {
  if (bytes.size() % sizeof(PackedModule) != 0) return Corrupt("modules of another length");
  LoraSpec spec;
  for (size_t at = 0; at < bytes.size(); at += sizeof(PackedModule)) {
    PackedModule p;
    std::memcpy(&p, bytes.data() + at, sizeof(p));
    if (p.module < 0 || p.module >= static_cast<int32_t>(kAllModules.size())) {
      return Corrupt("an unknown module");
    }
    spec.modules.push_back({p.layer, static_cast<Module>(p.module), p.lora_rank, p.scale});
  }
  return spec;
}

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
  std::unique_ptr<RegistryStore> store(new RegistryStore(lock));
  // Gone with the process, however it ends.
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    return BadData(dir,
                   errno == EWOULDBLOCK ? "another coordinator uses it" : std::strerror(errno));
  }
  ASSIGN_OR_RETURN(store->db_, SqlDatabase::Open(dir / "registry.db"));
  RETURN_IF_ERROR(store->db_->Execute(kSchema));
  return store;
}

RegistryStore::~RegistryStore() {
  db_.reset();
  close(lock_);
}

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

absl::StatusOr<std::vector<RegistryStore::NameRow>> RegistryStore::Names() {
  SqlStatement read(db_->get(), "SELECT tenant, name, digest, registered_ms FROM adapters");
  std::vector<NameRow> out;
  for (;;) {
    ASSIGN_OR_RETURN(const bool row, read.Next());
    if (!row) return out;
    ASSIGN_OR_RETURN(const Digest digest, ToDigest(read.Blob(2)));
    out.push_back({read.Text(0), read.Text(1), digest, read.Int(3)});
  }
}

absl::StatusOr<std::vector<AdapterContent>> RegistryStore::Contents() {
  SqlStatement read(db_->get(), "SELECT digest, modules, blob_bytes FROM contents");
  std::vector<AdapterContent> out;
  for (;;) {
    ASSIGN_OR_RETURN(const bool row, read.Next());
    if (!row) return out;
    ASSIGN_OR_RETURN(const Digest digest, ToDigest(read.Blob(0)));
    ASSIGN_OR_RETURN(LoraSpec spec, Unpack(read.Blob(1)));
    out.push_back({digest, std::move(spec), static_cast<uint64_t>(read.Int(2))});
  }
}

absl::StatusOr<std::string> RegistryStore::Receipt(const Digest& digest) {
  SqlStatement read(db_->get(), "SELECT receipt FROM contents WHERE digest = ?");
  read.BindBlob(Bytes(digest));
  ASSIGN_OR_RETURN(const bool row, read.Next());
  if (!row) return Corrupt("an adapter without content");
  return read.Text(0);
}

absl::Status RegistryStore::Insert(const NameRow& row, const AdapterContent& content,
                                   const std::string& receipt_json) {
  SqlTransaction transaction(*db_);
  RETURN_IF_ERROR(transaction.begun());
  RETURN_IF_ERROR(SqlStatement(db_->get(),
                               "INSERT INTO contents(digest, blob_bytes, modules, receipt) "
                               "VALUES(?, ?, ?, ?) ON CONFLICT(digest) DO NOTHING")
                      .BindBlob(Bytes(content.digest))
                      .Bind(static_cast<int64_t>(content.blob_bytes))
                      .BindBlob(Pack(content.spec))
                      .BindText(receipt_json)
                      .Run());
  RETURN_IF_ERROR(SqlStatement(db_->get(),
                               "INSERT INTO adapters(tenant, name, digest, registered_ms) "
                               "VALUES(?, ?, ?, ?) ON CONFLICT(tenant, name) DO UPDATE SET "
                               "digest = excluded.digest, registered_ms = excluded.registered_ms")
                      .BindText(row.tenant)
                      .BindText(row.name)
                      .BindBlob(Bytes(row.digest))
                      .Bind(row.registered_ms)
                      .Run());
  RETURN_IF_ERROR(Raise(kRevision));
  return transaction.Commit();
}

absl::Status RegistryStore::Remove(const std::string& tenant, const std::string& name) {
  SqlTransaction transaction(*db_);
  RETURN_IF_ERROR(transaction.begun());
  RETURN_IF_ERROR(SqlStatement(db_->get(), "DELETE FROM adapters WHERE tenant = ? AND name = ?")
                      .BindText(tenant)
                      .BindText(name)
                      .Run());
  RETURN_IF_ERROR(SqlStatement(db_->get(),
                               "DELETE FROM contents WHERE digest NOT IN "
                               "(SELECT digest FROM adapters)")
                      .Run());
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
                      .BindBlob(Bytes(fingerprint))
                      .Run());
  return fingerprint;
}

}  // namespace rootstock
