#include "coordinator/adapters/registry.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/adapters/adapter_path.h"
#include "coordinator/adapters/registry_impl.h"
#include "coordinator/content/adapter_sources.h"

namespace rootstock {

Registry::Registry(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Registry::~Registry() {
  if (const absl::Status saved = SaveUses(); !saved.ok()) {
    LogWarning("last uses of adapters: ", std::string(saved.message()));
  }
  CountLeaks();
}

absl::StatusOr<std::unique_ptr<Registry>> Registry::Open(RegistryOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  RETURN_IF_ERROR(impl->Load());
  return std::unique_ptr<Registry>(new Registry(std::move(impl)));
}

uint64_t Registry::incarnation() const { return impl_->incarnation; }

absl::StatusOr<AdapterEntry> Registry::Register(const std::string& name, const std::string& path,
                                                const std::string& tenant, bool new_version) {
  if (AdapterSources::IsUri(path))
    return RegisterUri(name, path, tenant, new_version, /*own=*/false);
  const auto directory = OpenAdapterPath(impl_->options.adapter_root, path);
  if (!directory.ok()) {
    if (impl_->options.metrics) impl_->options.metrics->Rejected(Reason::kPathInvalid);
    return directory.status();
  }
  return RegisterDirectory(name, directory->path(), tenant, new_version);
}

absl::StatusOr<AdapterEntry> Registry::RegisterOwnUri(const std::string& name,
                                                      const std::string& uri,
                                                      const std::string& tenant) {
  return RegisterUri(name, uri, tenant, /*new_version=*/false, /*own=*/true);
}

absl::StatusOr<AdapterEntry> Registry::RegisterUri(const std::string& name, const std::string& uri,
                                                   const std::string& tenant, bool new_version,
                                                   bool own) {
  RETURN_IF_ERROR(CheckNewName(name, tenant, impl_->options.base_name));
  const Impl::Key key{tenant, name};
  RETURN_IF_ERROR(impl_->BeginFetch(key));
  std::optional<absl::StatusOr<AdapterEntry>> entry;  // of what came
  const absl::Status fetched = [&]() -> absl::Status {
    AdapterSources* const sources = impl_->options.sources;
    if (sources == nullptr) {
      return InvalidField(Reason::kPathInvalid, "path", uri,
                          "the coordinator was started without --adapter-source");
    }
    const auto use = [&](const std::filesystem::path& directory) {
      entry =
          impl_->RegisterInTurn(key, new_version, [&] { return impl_->options.loader(directory); });
      return entry->status();
    };
    return own ? sources->FetchOwn(uri, use) : sources->Fetch(uri, use);
  }();
  impl_->EndFetch(key);
  if (entry) return *std::move(entry);
  impl_->CountRejected(fetched);
  return fetched;
}

absl::StatusOr<AdapterEntry> Registry::RegisterDirectory(const std::string& name,
                                                         const std::filesystem::path& directory,
                                                         const std::string& tenant,
                                                         bool new_version) {
  return RegisterFrom(name, tenant, new_version, [&] { return impl_->options.loader(directory); });
}

absl::StatusOr<AdapterEntry> Registry::RegisterFrom(
    const std::string& name, const std::string& tenant, bool new_version,
    const std::function<absl::StatusOr<LoadedAdapter>()>& source) {
  RETURN_IF_ERROR(CheckNewName(name, tenant, impl_->options.base_name));
  impl_->CountStaged(1);
  absl::StatusOr<AdapterEntry> entry = impl_->RegisterInTurn({tenant, name}, new_version, source);
  impl_->CountStaged(-1);
  return entry;
}

absl::StatusOr<std::vector<RetiredVersion>> Registry::Unregister(const std::string& name,
                                                                 const std::string& tenant,
                                                                 uint32_t version) {
  const Impl::Key key{tenant, name};
  const std::lock_guard database_lock(impl_->database_mutex);
  std::vector<RegistryStore::VersionRow> rows;
  {
    std::unique_lock lock(impl_->contents->mutex);
    if (const absl::Status found = impl_->names.Find(key, version).status(); !found.ok()) {
      lock.unlock();
      if (!absl::IsNotFound(found)) return found;
      ASSIGN_OR_RETURN(const uint32_t last, impl_->store->LastNumber(tenant, name));
      if (last < std::max(version, 1u)) return found;
      return std::vector<RetiredVersion>();
    }
    for (const auto& [number, found] : impl_->names.adapters().at(key)) {
      if (version != 0 && number != version) continue;
      if (!found.aliases.empty()) {
        return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kNameTaken, "name",
                         AdapterRef{name, number}.Text(),
                         absl::StrCat("is what the alias ", absl::StrJoin(found.aliases, ", "),
                                      " stands for; change or remove the alias first"));
      }
      rows.push_back({tenant, name, number, found.digest, found.registered_ms});
    }
  }
  RETURN_IF_ERROR(impl_->Commit([&] { return impl_->store->Remove(rows); }));
  const std::lock_guard lock(impl_->contents->mutex);
  std::vector<RetiredVersion> out;
  for (const RegistryStore::VersionRow& row : rows) {
    Names::Version& gone = impl_->names.adapters().at(key).at(row.number);
    if (!gone.pins.empty()) impl_->CountPinned(-1);
    impl_->Move(gone, AdapterState::kRetired);
    impl_->names.Remove(key, row.number);
    Contents::Content& content = impl_->contents->by_digest.at(row.digest);
    const bool last = --content.names == 0;
    impl_->tenant_bytes.Remove(tenant, row.digest, content.content->blob_bytes);
    if (last && content.handles > 0) impl_->contents->Count(AdapterState::kRetired, 1);
    out.push_back({row.number, row.digest, content.content->blob_bytes, last});
    impl_->contents->RemoveIfUnused(row.digest);
  }
  return out;
}

absl::StatusOr<AdapterEntry> Registry::Get(const std::string& name, const std::string& tenant,
                                           uint32_t version) const {
  const Impl::Key key{tenant, name};
  const std::lock_guard database_lock(impl_->database_mutex);
  AdapterEntry entry;
  {
    const std::lock_guard lock(impl_->contents->mutex);
    ASSIGN_OR_RETURN(const Names::Found found, impl_->names.Find(key, version));
    entry = impl_->Describe(key, found.number, *found.version);
  }
  ASSIGN_OR_RETURN(entry.receipt_json, impl_->store->Receipt(entry.digest));
  ASSIGN_OR_RETURN(entry.config_json, impl_->store->Config(tenant, name, entry.version));
  return entry;
}

std::vector<AdapterEntry> Registry::List(const std::string& tenant, const AdapterRef& after,
                                         size_t limit) const {
  const std::lock_guard lock(impl_->contents->mutex);
  std::vector<AdapterEntry> out;
  const auto& adapters = impl_->names.adapters();
  for (auto it = adapters.lower_bound({tenant, after.name});
       it != adapters.end() && it->first.first == tenant && out.size() < limit; ++it) {
    const uint32_t from = it->first.second == after.name ? after.version : 0;
    for (auto v = it->second.upper_bound(from); v != it->second.end() && out.size() < limit; ++v) {
      out.push_back(impl_->Describe(it->first, v->first, v->second));
    }
  }
  return out;
}

size_t Registry::size() const {
  const std::lock_guard lock(impl_->contents->mutex);
  return impl_->names.adapters().size();
}

absl::StatusOr<BoundModel> Registry::Resolve(const std::string& model, const std::string& tenant,
                                             const std::string& request_id) {
  const std::lock_guard lock(impl_->contents->mutex);
  ASSIGN_OR_RETURN(const Names::Bound bound, impl_->names.Bind(tenant, model, request_id));
  Names::Version& version = *bound.found.version;
  if (version.state == AdapterState::kFailed) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kIoError, "model", model,
                     "its stored content is missing or cut; register it again");
  }
  version.last_used_ms = impl_->options.unix_ms();
  impl_->NoteUse({tenant, bound.name}, bound.found.number, version);
  return BoundModel{impl_->contents->MakeHandle(impl_->contents->by_digest.at(version.digest)),
                    AdapterRef{bound.name, bound.found.number}.Text()};
}

AdapterHandle Registry::FindDigest(const Digest& digest) {
  const std::lock_guard lock(impl_->contents->mutex);
  const auto it = impl_->contents->by_digest.find(digest);
  return it == impl_->contents->by_digest.end() ? nullptr : impl_->contents->MakeHandle(it->second);
}

bool Registry::HasName(const Digest& digest) const {
  const std::lock_guard lock(impl_->contents->mutex);
  const auto it = impl_->contents->by_digest.find(digest);
  return it != impl_->contents->by_digest.end() && it->second.names > 0;
}

bool Registry::HasModel(const std::string& name, const std::string& tenant) const {
  if (name == impl_->options.base_name) return true;
  const std::lock_guard lock(impl_->contents->mutex);
  const Impl::Key key{tenant, name};
  return impl_->names.adapters().contains(key) || impl_->names.aliases().contains(key);
}

void Registry::WhenGone(const Digest& digest, std::function<void(bool gone)> done) {
  impl_->contents->WhenGone(digest, std::move(done));
}

size_t Registry::CountLeaks() const {
  const std::lock_guard lock(impl_->contents->mutex);
  size_t leaks = 0;
  for (const auto& [digest, content] : impl_->contents->by_digest) {
    if (content.handles == 0) continue;
    LogError("registry: ", content.handles, " handles of ", digest.Short(),
             " are out though no request runs");
    leaks += static_cast<size_t>(content.handles);
  }
  if (impl_->options.metrics) impl_->options.metrics->Leaked(leaks);
  return leaks;
}

absl::StatusOr<std::ifstream> Registry::ReadContent(const Digest& digest) {
  const absl::Status gone = MakeError(absl::StatusCode::kNotFound, Reason::kIoError, "digest",
                                      digest.Hex(), "no such content");
  uint64_t bytes = 0;
  {
    const AdapterHandle held = FindDigest(digest);
    if (held == nullptr) return gone;
    bytes = held->blob_bytes;
  }
  // No handle meanwhile: who takes the content away waits for no store.
  auto in = impl_->contents->blobs.Read(digest, bytes);
  const std::lock_guard lock(impl_->contents->mutex);
  if (impl_->contents->by_digest.contains(digest)) return in;
  impl_->contents->blobs.Remove(digest);  // it may have come too late
  return gone;
}

bool Registry::IsOnDisk(const Digest& digest) const {
  return impl_->contents->blobs.IsOnDisk(digest);
}

void Registry::DoubtContent(const Digest& digest) { impl_->contents->blobs.Doubt(digest); }

void Registry::CancelReads() { impl_->contents->blobs.Cancel(); }

void Registry::AwaitRemovals() { impl_->contents->blobs.AwaitRemovals(); }

absl::Status Registry::CheckBase(const Digest& fingerprint) {
  const std::lock_guard lock(impl_->database_mutex);
  ASSIGN_OR_RETURN(const Digest known,
                   impl_->store->BaseRecord(impl_->options.base_name, fingerprint));
  if (known == fingerprint) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kGroupMismatch,
                   "model_fingerprint", fingerprint.Short(),
                   absl::StrCat("the base '", impl_->options.base_name, "' is recorded as ",
                                known.Short(), ": the group serves another model"));
}

}  // namespace rootstock
