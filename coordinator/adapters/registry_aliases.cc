// The registry's aliases.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/adapters/adapter_path.h"
#include "coordinator/adapters/registry_impl.h"

namespace rootstock {
namespace {

AliasEntry MakeEntry(const Names::Key& key, const Names::Alias& alias) {
  return {key.second,    key.first,        alias.revision,
          alias.targets, alias.changed_ms, alias.rolled_back_to};
}

// `to`: the revision that was asked for; 0: the one before `current`.
absl::Status NoRevision(const std::string& alias, uint64_t to, uint64_t current) {
  const auto error = [](const char* field, const std::string& value, const std::string& text) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInvalidArgument, field, value,
                     text);
  };
  if (to > 0) {
    return error("revision", absl::StrCat(to),
                 absl::StrCat("the alias ", alias, " has no such revision to go back to"));
  }
  if (current == 1) return error("alias", alias, "is at its first revision; there is none before");
  return error("alias", alias,
               absl::StrCat("stood for nothing before revision ", current,
                            "; name a revision to go back to"));
}

}  // namespace

// Of refusals and failures alike nothing is left: the alias stands for what it stood for.
void Registry::Impl::CountFlip(const absl::Status& status) const {
  if (!options.metrics) return;
  const auto detail = GetErrorDetail(status);
  const bool error = !status.ok() && detail &&
                     (detail->reason == Reason::kIoError || detail->reason == Reason::kNoSpace) &&
                     status.code() != absl::StatusCode::kFailedPrecondition;
  options.metrics->Flipped(status.ok() ? AliasFlip::kOk
                           : error     ? AliasFlip::kError
                                       : AliasFlip::kRefused);
}

absl::StatusOr<Names::Alias> Registry::Impl::FindAlias(const Key& key) const {
  const std::lock_guard lock(contents->mutex);
  const auto it = names.aliases().find(key);
  if (it != names.aliases().end()) return it->second;
  return MakeError(absl::StatusCode::kNotFound, Reason::kUnknownModel, "alias", key.second,
                   "no alias of this name");
}

absl::StatusOr<Names::Alias> Registry::Impl::FindAliasAt(const Key& key, uint64_t expected) const {
  ASSIGN_OR_RETURN(Names::Alias alias, FindAlias(key));
  if (expected == 0 || alias.revision == expected) return alias;
  return MakeError(absl::StatusCode::kAborted, Reason::kInvalidArgument, "expected_revision",
                   absl::StrCat(expected),
                   absl::StrCat("the alias ", key.second, " is at revision ", alias.revision));
}

absl::StatusOr<AliasEntry> Registry::Impl::ChangeAlias(AliasEntry entry) {
  entry.changed_unix_ms = options.unix_ms();
  RETURN_IF_ERROR(Commit([&]() -> absl::Status {
    ASSIGN_OR_RETURN(entry.revision, store->InsertAlias(entry));
    return absl::OkStatus();
  }));
  const std::lock_guard lock(contents->mutex);
  names.Put({entry.tenant, entry.name},
            {entry.revision, entry.targets, entry.changed_unix_ms, entry.rolled_back_to});
  return entry;
}

absl::StatusOr<AliasEntry> Registry::Impl::TrySetAlias(const Key& key,
                                                       std::vector<AliasTarget> targets,
                                                       uint64_t expected) {
  RETURN_IF_ERROR(CheckNewName(key.second, key.first, options.base_name));
  RETURN_IF_ERROR(CheckAliasTargets(targets));
  const std::lock_guard database_lock(database_mutex);
  std::optional<Names::Alias> current;
  {
    const std::lock_guard lock(contents->mutex);
    RETURN_IF_ERROR(names.BindTargets(key.first, targets));
    if (names.adapters().contains(key)) {
      return MakeError(absl::StatusCode::kAlreadyExists, Reason::kNameTaken, "alias", key.second,
                       "is an adapter's name");
    }
    if (const auto it = names.aliases().find(key); it != names.aliases().end()) {
      current = it->second;
    }
  }
  // Again, now that their versions are known: "a" and "a@2" may be the same one.
  RETURN_IF_ERROR(CheckAliasTargets(targets));
  if (current && current->targets == targets) return MakeEntry(key, *current);
  if (expected > 0) RETURN_IF_ERROR(FindAliasAt(key, expected).status());
  return ChangeAlias({.name = key.second, .tenant = key.first, .targets = std::move(targets)});
}

absl::StatusOr<AliasEntry> Registry::Impl::TryRollback(const Key& key, uint64_t to,
                                                       uint64_t expected) {
  const std::lock_guard database_lock(database_mutex);
  ASSIGN_OR_RETURN(const Names::Alias current, FindAlias(key));
  // A call that is made again finds its own work.
  if (expected > 0 && current.revision == expected + 1 && current.rolled_back_to > 0 &&
      (to == 0 || to == current.rolled_back_to)) {
    return MakeEntry(key, current);
  }
  RETURN_IF_ERROR(FindAliasAt(key, expected).status());
  const uint64_t wanted = to > 0 ? to : current.revision - 1;
  ASSIGN_OR_RETURN(std::vector<AliasEntry> found,
                   store->AliasRevision(key.first, key.second, wanted));
  if (found.empty() || found[0].targets.empty()) {
    return NoRevision(key.second, to, current.revision);
  }
  AliasEntry entry = std::move(found[0]);
  if (entry.targets == current.targets) return MakeEntry(key, current);
  {
    const std::lock_guard lock(contents->mutex);
    for (const AliasTarget& target : entry.targets) {
      const auto there = names.Find({key.first, target.name}, target.version);
      if (there.ok() && there->version->state == AdapterState::kActive) continue;
      return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kUnknownModel, "revision",
                       absl::StrCat(wanted),
                       absl::StrCat("its target ", AdapterRef{target.name, target.version}.Text(),
                                    " is gone or lost"));
    }
  }
  entry.rolled_back_to = wanted;
  return ChangeAlias(std::move(entry));
}

absl::Status Registry::Impl::TryRemoveAlias(const Key& key, uint64_t expected) {
  const std::lock_guard database_lock(database_mutex);
  if (const absl::Status found = FindAliasAt(key, expected).status(); !found.ok()) {
    if (!absl::IsNotFound(found)) return found;
    // A call that is made again finds its own work.
    ASSIGN_OR_RETURN(const std::vector<AliasEntry> last,
                     store->AliasHistory(key.first, key.second, 1));
    const bool removed = !last.empty() && (expected == 0 || last[0].revision == expected + 1);
    return removed ? absl::OkStatus() : found;
  }
  return ChangeAlias({.name = key.second, .tenant = key.first}).status();
}

absl::StatusOr<AliasEntry> Registry::SetAlias(const std::string& alias, const std::string& tenant,
                                              std::vector<AliasTarget> targets, uint64_t expected) {
  auto out = impl_->TrySetAlias({tenant, alias}, std::move(targets), expected);
  impl_->CountFlip(out.status());
  return out;
}

absl::StatusOr<AliasEntry> Registry::RollbackAlias(const std::string& alias,
                                                   const std::string& tenant, uint64_t to,
                                                   uint64_t expected) {
  auto out = impl_->TryRollback({tenant, alias}, to, expected);
  impl_->CountFlip(out.status());
  return out;
}

absl::Status Registry::RemoveAlias(const std::string& alias, const std::string& tenant,
                                   uint64_t expected) {
  return impl_->TryRemoveAlias({tenant, alias}, expected);
}

absl::StatusOr<AliasEntry> Registry::GetAlias(const std::string& alias,
                                              const std::string& tenant) const {
  const Impl::Key key{tenant, alias};
  ASSIGN_OR_RETURN(const Names::Alias found, impl_->FindAlias(key));
  return MakeEntry(key, found);
}

std::vector<AliasEntry> Registry::ListAliases(const std::string& tenant, const std::string& after,
                                              size_t limit) const {
  const std::lock_guard lock(impl_->contents->mutex);
  std::vector<AliasEntry> out;
  const auto& aliases = impl_->names.aliases();
  for (auto it = aliases.upper_bound({tenant, after});
       it != aliases.end() && it->first.first == tenant && out.size() < limit; ++it) {
    out.push_back(MakeEntry(it->first, it->second));
  }
  return out;
}

absl::StatusOr<std::vector<AliasEntry>> Registry::AliasHistory(const std::string& alias,
                                                               const std::string& tenant,
                                                               size_t limit) const {
  const std::lock_guard database_lock(impl_->database_mutex);
  RETURN_IF_ERROR(impl_->FindAlias({tenant, alias}).status());
  return impl_->store->AliasHistory(tenant, alias, limit);
}

}  // namespace rootstock
