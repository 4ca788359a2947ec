#include "coordinator/adapters/sqlite.h"

#include <sqlite3.h>

#include "common/base/status.h"

namespace rootstock {
namespace {

absl::Status SqlError(sqlite3* db, int code) {
  const std::string text = db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(code);
  const bool full = code == SQLITE_FULL;
  return MakeError(full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
                   full ? Reason::kNoSpace : Reason::kIoError, "registry", "", "SQLite: " + text);
}

}  // namespace

SqlStatement::SqlStatement(sqlite3* db, const char* sql) : db_(db) {
  prepared_ = sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr);
}
SqlStatement::~SqlStatement() { sqlite3_finalize(statement_); }

absl::Status SqlStatement::Error(int code) const { return SqlError(db_, code); }

SqlStatement& SqlStatement::Bind(int64_t value) {
  sqlite3_bind_int64(statement_, ++bound_, value);
  return *this;
}
SqlStatement& SqlStatement::BindText(std::string_view value) {
  sqlite3_bind_text(statement_, ++bound_, value.data(), static_cast<int>(value.size()),
                    SQLITE_TRANSIENT);
  return *this;
}
SqlStatement& SqlStatement::BindBlob(std::string_view value) {
  sqlite3_bind_blob(statement_, ++bound_, value.data(), static_cast<int>(value.size()),
                    SQLITE_TRANSIENT);
  return *this;
}

absl::StatusOr<bool> SqlStatement::Next() {
  if (prepared_ != SQLITE_OK) return Error(prepared_);
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return Error(code);
}

absl::Status SqlStatement::Run() {
  for (;;) {
    ASSIGN_OR_RETURN(const bool row, Next());
    if (!row) return absl::OkStatus();
  }
}

int64_t SqlStatement::Int(int column) const { return sqlite3_column_int64(statement_, column); }
std::string SqlStatement::Text(int column) const { return Blob(column); }
std::string SqlStatement::Blob(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  const int bytes = sqlite3_column_bytes(statement_, column);
  return data == nullptr ? std::string()
                         : std::string(static_cast<const char*>(data), static_cast<size_t>(bytes));
}

absl::StatusOr<std::unique_ptr<SqlDatabase>> SqlDatabase::Open(const std::filesystem::path& file) {
  sqlite3* raw = nullptr;
  const int code =
      sqlite3_open_v2(file.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  std::unique_ptr<SqlDatabase> db(new SqlDatabase(raw));
  if (code != SQLITE_OK) return Annotate(SqlError(raw, code), file.string());
  for (const char* pragma : {"PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL",
                             "PRAGMA busy_timeout=5000", "PRAGMA foreign_keys=ON"}) {
    RETURN_IF_ERROR(Annotate(db->Execute(pragma), file.string()));
  }
  return db;
}

SqlDatabase::~SqlDatabase() { sqlite3_close(db_); }

absl::Status SqlDatabase::Execute(const char* sql) {
  const int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : SqlError(db_, code);
}

SqlTransaction::~SqlTransaction() {
  if (open_ && status_.ok()) db_.Execute("ROLLBACK").IgnoreError();
}

absl::Status SqlTransaction::Commit() {
  RETURN_IF_ERROR(db_.Execute("COMMIT"));
  open_ = false;
  return absl::OkStatus();
}

}  // namespace rootstock
