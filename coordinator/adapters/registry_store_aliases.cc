// RegistryStore's tables of aliases and pins.
#include "common/base/status.h"
#include "coordinator/adapters/registry_codec.h"
#include "coordinator/adapters/registry_store.h"

namespace rootstock {
namespace {

// Rows of tenant, alias, revision, targets, changed_ms, rolled_back_to.
absl::StatusOr<std::vector<AliasEntry>> ReadAliases(SqlStatement& read) {
  std::vector<AliasEntry> out;
  for (;;) {
    ASSIGN_OR_RETURN(const bool row, read.Next());
    if (!row) return out;
    AliasEntry entry;
    entry.tenant = read.Text(0);
    entry.name = read.Text(1);
    entry.revision = static_cast<uint64_t>(read.Int(2));
    ASSIGN_OR_RETURN(entry.targets, DecodeAliasTargets(read.Text(3)));
    entry.changed_unix_ms = read.Int(4);
    entry.rolled_back_to = static_cast<uint64_t>(read.Int(5));
    out.push_back(std::move(entry));
  }
}

}  // namespace

absl::StatusOr<std::vector<AliasEntry>> RegistryStore::Aliases() {
  // The other columns are those of the row that has the maximum.
  SqlStatement read(db_->get(),
                    "SELECT tenant, alias, max(revision), targets, changed_ms, rolled_back_to "
                    "FROM alias_revisions GROUP BY tenant, alias");
  ASSIGN_OR_RETURN(std::vector<AliasEntry> out, ReadAliases(read));
  std::erase_if(out, [](const AliasEntry& entry) { return entry.targets.empty(); });
  return out;
}

absl::StatusOr<std::vector<AliasEntry>> RegistryStore::AliasHistory(const std::string& tenant,
                                                                    const std::string& alias,
                                                                    size_t limit) {
  SqlStatement read(db_->get(),
                    "SELECT tenant, alias, revision, targets, changed_ms, rolled_back_to "
                    "FROM alias_revisions WHERE tenant = ? AND alias = ? "
                    "ORDER BY revision DESC LIMIT ?");
  read.BindText(tenant).BindText(alias).Bind(static_cast<int64_t>(limit));
  return ReadAliases(read);
}

absl::StatusOr<std::vector<AliasEntry>> RegistryStore::AliasRevision(const std::string& tenant,
                                                                     const std::string& alias,
                                                                     uint64_t revision) {
  SqlStatement read(db_->get(),
                    "SELECT tenant, alias, revision, targets, changed_ms, rolled_back_to "
                    "FROM alias_revisions WHERE tenant = ? AND alias = ? AND revision = ?");
  read.BindText(tenant).BindText(alias).Bind(static_cast<int64_t>(revision));
  return ReadAliases(read);
}

absl::StatusOr<uint64_t> RegistryStore::InsertAlias(const AliasEntry& entry) {
  SqlTransaction transaction(*db_);
  RETURN_IF_ERROR(transaction.begun());
  uint64_t revision = 0;
  {
    SqlStatement insert(db_->get(),
                        "INSERT INTO alias_revisions SELECT ?1, ?2, coalesce(max(revision), 0) + 1,"
                        " ?3, ?4, ?5 FROM alias_revisions WHERE tenant = ?1 AND alias = ?2 "
                        "RETURNING revision");
    insert.BindText(entry.tenant)
        .BindText(entry.name)
        .BindText(EncodeAliasTargets(entry.targets))
        .Bind(entry.changed_unix_ms)
        .Bind(static_cast<int64_t>(entry.rolled_back_to));
    ASSIGN_OR_RETURN(const bool there, insert.Next());
    if (!there) return CorruptRegistry("an alias without a revision");
    revision = static_cast<uint64_t>(insert.Int(0));
    RETURN_IF_ERROR(insert.Run());
  }
  RETURN_IF_ERROR(Raise(kRevision));
  RETURN_IF_ERROR(transaction.Commit());
  return revision;
}

absl::StatusOr<std::vector<RegistryStore::PinRow>> RegistryStore::Pins() {
  SqlStatement read(db_->get(), "SELECT tenant, name, number, worker_group FROM pins");
  std::vector<PinRow> out;
  for (;;) {
    ASSIGN_OR_RETURN(const bool row, read.Next());
    if (!row) return out;
    out.push_back({read.Text(0), read.Text(1), static_cast<uint32_t>(read.Int(2)), read.Text(3)});
  }
}

absl::Status RegistryStore::ChangePins(const char* sql, const PinRow& pin, bool with_group) {
  SqlTransaction transaction(*db_);
  RETURN_IF_ERROR(transaction.begun());
  {
    SqlStatement change(db_->get(), sql);
    change.BindText(pin.tenant).BindText(pin.name).Bind(pin.number);
    if (with_group) change.BindText(pin.group);
    RETURN_IF_ERROR(change.Run());
  }
  RETURN_IF_ERROR(Raise(kRevision));
  return transaction.Commit();
}

absl::Status RegistryStore::InsertPin(const PinRow& pin) {
  return ChangePins("INSERT INTO pins(tenant, name, number, worker_group) VALUES(?, ?, ?, ?)", pin,
                    true);
}

absl::Status RegistryStore::RemovePin(const PinRow& pin) {
  return ChangePins(
      "DELETE FROM pins WHERE tenant = ? AND name = ? AND number = ? AND worker_group = ?", pin,
      true);
}

absl::Status RegistryStore::RemovePins(const PinRow& pin) {
  return ChangePins("DELETE FROM pins WHERE tenant = ? AND name = ? AND number = ?", pin, false);
}

}  // namespace rootstock
