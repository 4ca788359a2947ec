#include "coordinator/adapters/registry_impl.h"

#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace rootstock {

// The gauge of retired contents follows their handles, all others follow the versions.
void Registry::Impl::Move(Names::Version& version, AdapterState to) {
  if (!MayMove(version.state, to)) {
    LogError("registry: illegal move from ", AdapterStateName(version.state), " to ",
             AdapterStateName(to));
    std::abort();
  }
  if (version.state != AdapterState::kStaged) contents->Count(version.state, -1);
  if (to != AdapterState::kRetired) contents->Count(to, 1);
  version.state = to;
}

// Its requests would be answered by the base.
absl::Status Registry::Impl::CheckNotBase(const std::string& tenant,
                                          const std::string& name) const {
  if (name != options.base_name) return absl::OkStatus();
  return MakeError(absl::StatusCode::kAlreadyExists, Reason::kNameTaken, "served-model-name", name,
                   absl::StrCat("an adapter or alias of tenant '", tenant,
                                "' has this name; the base needs another one"));
}

// Content never comes before the first incarnation: its registry was lost.
absl::Status Registry::Impl::CheckNothingIsThere() const {
  const std::filesystem::path blobs = options.data_dir / "blobs";
  const ContentCount there = CountContent(blobs);
  if (there.contents == 0) return absl::OkStatus();
  const std::string what = absl::StrCat(
      "registry.db is new or empty, but ", blobs.string(), " has ", there.contents, " contents (",
      there.bytes, " bytes on disk, the rest noted as being in an object store)");
  if (options.blobs.unknown_grace.count() == 0) {
    LogWarning("data=", options.data_dir.string(), ": ", what, ": discarded, as it was asked for");
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kIoError, "data",
                   options.data_dir.string(),
                   absl::StrCat(what,
                                ": put registry.db back, together with its registry.db-wal, or "
                                "remove the content by --discard-unknown-content"));
}

absl::Status Registry::Impl::Load() {
  ASSIGN_OR_RETURN(store, RegistryStore::Open(options.data_dir));
  const absl::Cleanup keep = [&] { store->KeepReserve(); };
  ASSIGN_OR_RETURN(const uint64_t before, store->Incarnation());
  if (before == 0) RETURN_IF_ERROR(CheckNothingIsThere());
  const auto raised = store->RaiseIncarnation();  // the first change: a full disk shows here
  if (!raised.ok()) {
    return Annotate(raised.status(), absl::StrCat("data=", options.data_dir.string()));
  }
  incarnation = *raised;
  RETURN_IF_ERROR(ShowRevision());
  RETURN_IF_ERROR(LoadVersions());
  return LoadAliasesAndPins();
}

absl::Status Registry::Impl::LoadVersions() {
  ASSIGN_OR_RETURN(const std::vector<RegistryStore::VersionRow> rows, store->Versions());
  ASSIGN_OR_RETURN(std::vector<AdapterContent> found, store->Contents());
  std::set<Digest> keep;
  for (AdapterContent& c : found) {
    keep.insert(c.digest);
    const Digest digest = c.digest;
    contents->by_digest[digest].content = std::make_shared<const AdapterContent>(std::move(c));
  }
  RETURN_IF_ERROR(contents->blobs.Open(keep));
  for (auto& [digest, content] : contents->by_digest) {
    content.lost = contents->blobs.IsLost(digest, content.content->blob_bytes);
  }
  for (const RegistryStore::VersionRow& row : rows) {
    RETURN_IF_ERROR(CheckNotBase(row.tenant, row.name));
    Contents::Content& content = contents->by_digest.at(row.digest);
    Names::Version& version = names.Add({row.tenant, row.name}, row.number);
    version.digest = row.digest;
    version.registered_ms = row.registered_ms;
    version.last_used_ms = row.last_used_ms;
    Move(version, AdapterState::kActive);
    ++content.names;
    contents->CountStored(content);
    tenant_bytes.Add(row.tenant, row.digest, content.content->blob_bytes);
    if (content.lost) {
      Move(version, AdapterState::kFailed);
      LogError("registry: the stored content of adapter '", row.name, "' version ", row.number,
               " (", row.digest.Short(), ") is missing or cut; register it again");
    }
  }
  return absl::OkStatus();
}

absl::Status Registry::Impl::LoadAliasesAndPins() {
  ASSIGN_OR_RETURN(std::vector<AliasEntry> aliases, store->Aliases());
  for (AliasEntry& row : aliases) {
    RETURN_IF_ERROR(CheckNotBase(row.tenant, row.name));
    names.Put({row.tenant, row.name},
              {row.revision, std::move(row.targets), row.changed_unix_ms, row.rolled_back_to});
  }
  ASSIGN_OR_RETURN(const std::vector<RegistryStore::PinRow> pins, store->Pins());
  for (const RegistryStore::PinRow& row : pins) {
    ASSIGN_OR_RETURN(const Names::Found found, names.Find({row.tenant, row.name}, row.number));
    if (found.version->pins.empty()) CountPinned(1);
    found.version->pins.insert(row.group);
  }
  return absl::OkStatus();
}

absl::Status Registry::Impl::Commit(const std::function<absl::Status()>& change) {
  const auto begin = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(change());
  if (options.metrics) {
    options.metrics->Committed(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  // It is durable: what can't be shown must not make it look like a failure.
  if (const absl::Status shown = ShowRevision(); !shown.ok()) {
    LogWarning("registry: ", std::string(shown.message()));
  }
  return absl::OkStatus();
}

absl::Status Registry::Impl::ShowRevision() {
  if (!options.metrics) return absl::OkStatus();
  ASSIGN_OR_RETURN(const uint64_t revision, store->Revision());
  options.metrics->IsAt(revision, store->log_bytes());
  return absl::OkStatus();
}

void Registry::Impl::CountPinned(int by) const {
  if (options.metrics) options.metrics->Pinned(by);
}

AdapterEntry Registry::Impl::Describe(const Key& key, uint32_t number,
                                      const Names::Version& version) const {
  AdapterEntry out;
  out.tenant = key.first;
  out.name = key.second;
  out.version = number;
  out.state = version.state;
  out.digest = version.digest;
  out.blob_bytes = contents->by_digest.at(version.digest).content->blob_bytes;
  if (contents->blobs.IsOnDisk(version.digest)) {
    out.stored_in = "coordinator";
  } else if (options.blobs.remote != nullptr && version.state != AdapterState::kFailed) {
    out.stored_in = "object";
  }
  out.registered_unix_ms = version.registered_ms;
  out.last_used_unix_ms = version.last_used_ms;
  out.newest = names.Newest(key) == number;
  out.pins.assign(version.pins.begin(), version.pins.end());
  out.aliases.assign(version.aliases.begin(), version.aliases.end());
  return out;
}

}  // namespace rootstock
