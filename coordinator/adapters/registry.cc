#include "coordinator/adapters/registry.h"

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/adapters/adapter_path.h"
#include "coordinator/adapters/registry_impl.h"

namespace rootstock {
namespace {

constexpr size_t kMaxTenantBytes = 63;

absl::Status UnknownModel(const std::string& name) {
  return MakeError(absl::StatusCode::kNotFound, Reason::kUnknownModel, "model", name,
                   "no model or adapter of this name");
}

}  // namespace

Registry::Registry(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Registry::~Registry() = default;

absl::StatusOr<std::unique_ptr<Registry>> Registry::Open(RegistryOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  RETURN_IF_ERROR(impl->Load());
  return std::unique_ptr<Registry>(new Registry(std::move(impl)));
}

uint64_t Registry::incarnation() const { return impl_->incarnation; }

absl::StatusOr<AdapterEntry> Registry::Register(const std::string& name, const std::string& path,
                                                const std::string& tenant) {
  const auto directory = ResolveAdapterPath(impl_->options.adapter_root, path);
  if (!directory.ok()) {
    if (impl_->options.metrics) impl_->options.metrics->Rejected(Reason::kPathInvalid);
    return directory.status();
  }
  return RegisterDirectory(name, *directory, tenant);
}

absl::StatusOr<AdapterEntry> Registry::RegisterDirectory(const std::string& name,
                                                         const std::filesystem::path& directory,
                                                         const std::string& tenant) {
  RETURN_IF_ERROR(CheckAdapterName(name));
  if (tenant.empty() || tenant.size() > kMaxTenantBytes) {
    return InvalidField(Reason::kInvalidArgument, "tenant", tenant, "1 to 63 bytes");
  }
  if (name == impl_->options.base_name) {
    return MakeError(absl::StatusCode::kAlreadyExists, Reason::kNameTaken, "name", name,
                     "is the served base model's name");
  }
  const Impl::Key key{tenant, name};
  {
    // One registration of a name at a time; the next one then finds the first one's content.
    std::unique_lock lock(impl_->shared->mutex);
    impl_->staged_changed.wait(lock, [&] { return !impl_->staged.contains(key); });
    impl_->staged.insert(key);
    impl_->shared->Count(AdapterState::kStaged, 1);
  }
  absl::StatusOr<AdapterEntry> entry = absl::UnknownError("");
  absl::StatusOr<LoadedAdapter> loaded = impl_->options.loader(directory);
  if (loaded.ok()) {
    entry = impl_->Store(key, *loaded);
  } else {
    entry = loaded.status();
    const auto detail = GetErrorDetail(loaded.status());
    if (detail && impl_->options.metrics) impl_->options.metrics->Rejected(detail->reason);
  }
  const std::lock_guard lock(impl_->shared->mutex);
  impl_->staged.erase(key);
  impl_->shared->Count(AdapterState::kStaged, -1);
  impl_->staged_changed.notify_all();
  return entry;
}

absl::StatusOr<UnregisteredAdapter> Registry::Unregister(const std::string& name,
                                                         const std::string& tenant) {
  const Impl::Key key{tenant, name};
  const std::lock_guard database_lock(impl_->database_mutex);
  UnregisteredAdapter out;
  {
    const std::lock_guard lock(impl_->shared->mutex);
    const auto it = impl_->names.find(key);
    if (it == impl_->names.end()) return UnknownModel(name);
    out.digest = it->second.digest;
  }
  RETURN_IF_ERROR(impl_->Commit([&] { return impl_->store->Remove(tenant, name); }));
  const std::lock_guard lock(impl_->shared->mutex);
  const auto it = impl_->names.find(key);
  Impl::Content& content = impl_->shared->contents.at(out.digest);
  impl_->Move(it->second, AdapterState::kRetired);
  impl_->names.erase(it);
  if (--content.names == 0) {
    out.last_name = true;
    out.freed_bytes = content.content->blob_bytes;
    if (content.handles > 0) impl_->shared->Count(AdapterState::kRetired, 1);
  }
  impl_->shared->RemoveIfUnused(out.digest);
  return out;
}

absl::StatusOr<AdapterEntry> Registry::Get(const std::string& name,
                                           const std::string& tenant) const {
  const Impl::Key key{tenant, name};
  const std::lock_guard database_lock(impl_->database_mutex);
  AdapterEntry entry;
  {
    const std::lock_guard lock(impl_->shared->mutex);
    const auto it = impl_->names.find(key);
    if (it == impl_->names.end()) return UnknownModel(name);
    entry = impl_->Describe(key, it->second);
  }
  ASSIGN_OR_RETURN(entry.receipt_json, impl_->store->Receipt(entry.digest));
  return entry;
}

std::vector<AdapterEntry> Registry::List(const std::string& tenant, const std::string& after,
                                         size_t limit) const {
  const std::lock_guard lock(impl_->shared->mutex);
  std::vector<AdapterEntry> out;
  for (auto it = impl_->names.upper_bound({tenant, after});
       it != impl_->names.end() && it->first.first == tenant && out.size() < limit; ++it) {
    out.push_back(impl_->Describe(it->first, it->second));
  }
  return out;
}

size_t Registry::size() const {
  const std::lock_guard lock(impl_->shared->mutex);
  return impl_->names.size();
}

absl::StatusOr<AdapterHandle> Registry::Resolve(const std::string& name,
                                                const std::string& tenant) {
  const std::lock_guard lock(impl_->shared->mutex);
  const auto it = impl_->names.find({tenant, name});
  if (it == impl_->names.end()) return UnknownModel(name);
  if (it->second.state == AdapterState::kFailed) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kIoError, "model", name,
                     "its stored content is missing or cut; register it again");
  }
  it->second.last_used_ms = impl_->options.unix_ms();
  return impl_->MakeHandle(impl_->shared->contents.at(it->second.digest));
}

AdapterHandle Registry::FindDigest(const Digest& digest) {
  const std::lock_guard lock(impl_->shared->mutex);
  const auto it = impl_->shared->contents.find(digest);
  return it == impl_->shared->contents.end() ? nullptr : impl_->MakeHandle(it->second);
}

bool Registry::HasName(const Digest& digest) const {
  const std::lock_guard lock(impl_->shared->mutex);
  const auto it = impl_->shared->contents.find(digest);
  return it != impl_->shared->contents.end() && it->second.names > 0;
}

std::filesystem::path Registry::BlobPath(const Digest& digest) const {
  return impl_->shared->blobs.PathOf(digest);
}

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
