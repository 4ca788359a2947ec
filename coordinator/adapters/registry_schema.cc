#include "coordinator/adapters/registry_schema.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr int64_t kSchemaVersion = 4;  // PRAGMA user_version; the first schema left it at 0

// `receipt` is what follows from the content, `config` what only the version's own directory said:
// equal content of another tenant may say other. `names` and `alias_revisions` keep the rows of
// what was removed: no number comes twice.
constexpr char kSchema[] = R"(
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS bases(name TEXT PRIMARY KEY, fingerprint BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS contents(
  digest BLOB PRIMARY KEY, blob_bytes INTEGER NOT NULL, modules BLOB NOT NULL,
  receipt TEXT NOT NULL);
CREATE TABLE names(
  tenant TEXT NOT NULL, name TEXT NOT NULL, last_number INTEGER NOT NULL,
  PRIMARY KEY(tenant, name)) WITHOUT ROWID;
CREATE TABLE versions(
  tenant TEXT NOT NULL, name TEXT NOT NULL, number INTEGER NOT NULL,
  digest BLOB NOT NULL REFERENCES contents(digest), registered_ms INTEGER NOT NULL,
  last_used_ms INTEGER NOT NULL DEFAULT 0, config TEXT NOT NULL DEFAULT '{}',
  PRIMARY KEY(tenant, name, number)) WITHOUT ROWID;
CREATE INDEX versions_by_digest ON versions(digest);
CREATE TABLE alias_revisions(
  tenant TEXT NOT NULL, alias TEXT NOT NULL, revision INTEGER NOT NULL, targets TEXT NOT NULL,
  changed_ms INTEGER NOT NULL, rolled_back_to INTEGER NOT NULL,
  PRIMARY KEY(tenant, alias, revision)) WITHOUT ROWID;
CREATE TABLE pins(
  tenant TEXT NOT NULL, name TEXT NOT NULL, number INTEGER NOT NULL, worker_group TEXT NOT NULL,
  PRIMARY KEY(tenant, name, number, worker_group),
  FOREIGN KEY(tenant, name, number) REFERENCES versions ON DELETE CASCADE) WITHOUT ROWID;
)";

// The first schema had one content a name.
constexpr char kFromNames[] = R"(
INSERT INTO names SELECT tenant, name, 1 FROM adapters;
INSERT INTO versions(tenant, name, number, digest, registered_ms)
  SELECT tenant, name, 1, digest, registered_ms FROM adapters;
DROP TABLE adapters;
)";

// The second one forgot when a version was used.
constexpr char kFromSecond[] =
    "ALTER TABLE versions ADD COLUMN last_used_ms INTEGER NOT NULL DEFAULT 0;";

// The third one kept with a content what the config of whoever brought it first had said. Whose
// that was is not known any more, so nobody is told.
constexpr char kFromThird[] = "ALTER TABLE versions ADD COLUMN config TEXT NOT NULL DEFAULT '{}';";
constexpr char kForgetConfigs[] =
    "UPDATE contents SET receipt = "
    "json_remove(receipt, '$.base_model_name', '$.base_name_warning', '$.harmless_fields');";

absl::StatusOr<int64_t> Number(SqlDatabase& db, const char* sql) {
  SqlStatement read(db.get(), sql);
  ASSIGN_OR_RETURN(const bool row, read.Next());
  return row ? read.Int(0) : 0;
}

}  // namespace

absl::Status PrepareSchema(SqlDatabase& db) {
  SqlTransaction transaction(db);
  RETURN_IF_ERROR(transaction.begun());
  ASSIGN_OR_RETURN(const int64_t found, Number(db, "PRAGMA user_version"));
  if (found == kSchemaVersion) return absl::OkStatus();
  if (found > kSchemaVersion) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, Reason::kIoError, "registry",
        absl::StrCat("schema ", found),
        absl::StrCat("a later release wrote it; this one reads up to schema ", kSchemaVersion));
  }
  ASSIGN_OR_RETURN(const int64_t first,
                   Number(db, "SELECT count(*) FROM sqlite_master WHERE name = 'adapters'"));
  if (found == 0) RETURN_IF_ERROR(db.Execute(kSchema));
  if (first > 0) RETURN_IF_ERROR(db.Execute(kFromNames));
  if (found == 2) RETURN_IF_ERROR(db.Execute(kFromSecond));
  if (found == 2 || found == 3) RETURN_IF_ERROR(db.Execute(kFromThird));
  RETURN_IF_ERROR(db.Execute(kForgetConfigs));
  RETURN_IF_ERROR(db.Execute(absl::StrCat("PRAGMA user_version = ", kSchemaVersion).c_str()));
  return transaction.Commit();
}

}  // namespace rootstock
