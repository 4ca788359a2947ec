// The little of SQLite that the registry needs, with absl::Status.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace rootstock {

// One prepared statement, used once. Not thread-safe.
class SqlStatement {
 public:
  SqlStatement(sqlite3* db, const char* sql);
  ~SqlStatement();
  SqlStatement(const SqlStatement&) = delete;
  SqlStatement& operator=(const SqlStatement&) = delete;

  SqlStatement& Bind(int64_t value);
  SqlStatement& BindText(std::string_view value);
  SqlStatement& BindBlob(std::string_view value);

  absl::Status Run();           // to the end
  absl::StatusOr<bool> Next();  // true: a row is there
  int64_t Int(int column) const;
  std::string Text(int column) const;
  std::string Blob(int column) const;

 private:
  absl::Status Error(int code) const;
  sqlite3* db_;
  sqlite3_stmt* statement_ = nullptr;
  int prepared_ = 0;
  int bound_ = 0;
};

// A database in WAL mode with synchronous FULL: a committed transaction is on the disk.
// Not thread-safe: the registry's mutex guards it.
class SqlDatabase {
 public:
  static absl::StatusOr<std::unique_ptr<SqlDatabase>> Open(const std::filesystem::path& file);
  ~SqlDatabase();
  SqlDatabase(const SqlDatabase&) = delete;
  SqlDatabase& operator=(const SqlDatabase&) = delete;

  absl::Status Execute(const char* sql);
  sqlite3* get() const { return db_; }

 private:
  explicit SqlDatabase(sqlite3* db) : db_(db) {}
  sqlite3* db_;
};

// Rolls back unless committed.
class SqlTransaction {
 public:
  explicit SqlTransaction(SqlDatabase& db) : db_(db), status_(db.Execute("BEGIN IMMEDIATE")) {}
  ~SqlTransaction();
  absl::Status begun() const { return status_; }
  absl::Status Commit();

 private:
  SqlDatabase& db_;
  absl::Status status_;
  bool open_ = true;
};

}  // namespace rootstock
