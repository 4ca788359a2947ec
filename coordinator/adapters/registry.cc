#include "coordinator/adapters/registry.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/adapters/adapter_path.h"
#include "coordinator/adapters/blob_store.h"
#include "coordinator/adapters/registry_metrics.h"
#include "coordinator/adapters/registry_store.h"

namespace rootstock {
namespace {

using Key = std::pair<std::string, std::string>;  // tenant, name

constexpr size_t kMaxTenantBytes = 63;

absl::Status UnknownModel(const std::string& name) {
  return MakeError(absl::StatusCode::kNotFound, Reason::kUnknownModel, "model", name,
                   "no model or adapter of this name");
}

}  // namespace

struct Registry::Impl {
  struct Name {
    Digest digest;
    AdapterState state = AdapterState::kStaged;
    int64_t registered_ms = 0;
    int64_t last_used_ms = 0;
  };
  struct Content {
    std::shared_ptr<const AdapterContent> content;
    int names = 0;
    int handles = 0;  // in flight
  };
  // What handles outlive the registry with.
  struct Shared {
    explicit Shared(std::filesystem::path dir) : blobs(std::move(dir)) {}
    BlobStore blobs;
    std::shared_ptr<RegistryMetrics> metrics;
    std::mutex mutex;
    std::map<Digest, Content> contents;

    void Count(AdapterState state, int by) const {
      if (metrics) metrics->Moved(state, by);
    }
    // Under the mutex: nobody can take up the content between the look and the removal.
    void RemoveIfUnused(const Digest& digest) {
      const auto it = contents.find(digest);
      if (it == contents.end() || it->second.names > 0 || it->second.handles > 0) return;
      blobs.Remove(digest);
      contents.erase(it);
    }
  };

  explicit Impl(RegistryOptions o)
      : options(std::move(o)), shared(std::make_shared<Shared>(options.data_dir / "blobs")) {
    shared->metrics = options.metrics;
  }

  AdapterHandle MakeHandle(Content& content);
  void Move(Name& name, AdapterState to);
  absl::Status Load();
  absl::StatusOr<AdapterEntry> Store(const Key& key, const LoadedAdapter& loaded);
  absl::StatusOr<bool> AlreadyThere(const Key& key, const Digest& digest) const;
  AdapterEntry Describe(const Key& key, const Name& name) const;

  RegistryOptions options;
  std::shared_ptr<Shared> shared;
  // Lock order: database, then shared->mutex. `names` and `staged` are under the latter.
  std::mutex database_mutex;
  std::unique_ptr<RegistryStore> store;
  std::map<Key, Name> names;
  std::set<Key> staged;
  std::condition_variable staged_changed;
  uint64_t incarnation = 0;
};

AdapterHandle Registry::Impl::MakeHandle(Content& content) {
  if (++content.handles == 1 && content.names == 0) shared->Count(AdapterState::kRetired, 1);
  return AdapterHandle(content.content.get(),
                       [s = shared, keep = content.content](const AdapterContent*) {
                         const std::lock_guard lock(s->mutex);
                         Content& c = s->contents.at(keep->digest);
                         if (--c.handles == 0 && c.names == 0) s->Count(AdapterState::kRetired, -1);
                         s->RemoveIfUnused(keep->digest);
                       });
}

// The gauge of retired contents follows their handles, all others follow the names.
void Registry::Impl::Move(Name& name, AdapterState to) {
  if (!MayMove(name.state, to)) {
    LogError("registry: illegal move from ", AdapterStateName(name.state), " to ",
             AdapterStateName(to));
    std::abort();
  }
  if (name.state != AdapterState::kStaged) shared->Count(name.state, -1);
  if (to != AdapterState::kRetired) shared->Count(to, 1);
  name.state = to;
}

absl::Status Registry::Impl::Load() {
  ASSIGN_OR_RETURN(store, RegistryStore::Open(options.data_dir));
  ASSIGN_OR_RETURN(incarnation, store->RaiseIncarnation());
  ASSIGN_OR_RETURN(const std::vector<RegistryStore::NameRow> rows, store->Names());
  ASSIGN_OR_RETURN(const std::vector<AdapterContent> contents, store->Contents());
  std::set<Digest> keep;
  for (const AdapterContent& c : contents) {
    keep.insert(c.digest);
    shared->contents[c.digest].content = std::make_shared<const AdapterContent>(c);
  }
  RETURN_IF_ERROR(shared->blobs.Open(keep));
  for (const RegistryStore::NameRow& row : rows) {
    Content& content = shared->contents.at(row.digest);
    const bool whole = shared->blobs.Holds(row.digest, content.content->blob_bytes);
    Name& name = names[{row.tenant, row.name}];
    name.digest = row.digest;
    name.registered_ms = row.registered_ms;
    Move(name, AdapterState::kActive);
    ++content.names;
    if (!whole) {
      Move(name, AdapterState::kFailed);
      LogError("registry: the stored content of adapter '", row.name, "' (", row.digest.Short(),
               ") is missing or cut; register it again");
    }
  }
  return absl::OkStatus();
}

AdapterEntry Registry::Impl::Describe(const Key& key, const Name& name) const {
  AdapterEntry out;
  out.tenant = key.first;
  out.name = key.second;
  out.state = name.state;
  out.digest = name.digest;
  out.blob_bytes = shared->contents.at(name.digest).content->blob_bytes;
  out.registered_unix_ms = name.registered_ms;
  out.last_used_unix_ms = name.last_used_ms;
  return out;
}

// True: the name holds this very content and its blob is whole.
absl::StatusOr<bool> Registry::Impl::AlreadyThere(const Key& key, const Digest& digest) const {
  const auto it = names.find(key);
  if (it == names.end()) return false;
  if (it->second.digest != digest) {
    return MakeError(absl::StatusCode::kAlreadyExists, Reason::kNameTaken, "name", key.second,
                     absl::StrCat("holds other content (", it->second.digest.Short(), ", not ",
                                  digest.Short(), "); unregister it first"));
  }
  return it->second.state == AdapterState::kActive;
}

absl::StatusOr<AdapterEntry> Registry::Impl::Store(const Key& key, const LoadedAdapter& loaded) {
  AdapterHandle held;  // nobody removes the blob between its rename and the commit
  {
    const std::lock_guard lock(shared->mutex);
    ASSIGN_OR_RETURN(const bool there, AlreadyThere(key, loaded.digest));
    Content& content = shared->contents[loaded.digest];
    if (!content.content) {
      content.content = std::make_shared<const AdapterContent>(
          AdapterContent{loaded.digest, loaded.spec, loaded.canonical.size()});
    }
    held = MakeHandle(content);
    if (there) {
      AdapterEntry entry = Describe(key, names.at(key));
      entry.receipt_json = loaded.receipt_json;
      return entry;
    }
  }
  if (!shared->blobs.Holds(loaded.digest, loaded.canonical.size())) {
    RETURN_IF_ERROR(shared->blobs.Put(loaded.digest, loaded.canonical));
  }
  const int64_t now = options.unix_ms();
  const std::lock_guard database_lock(database_mutex);
  const auto begin = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(
      store->Insert({key.first, key.second, loaded.digest, now}, *held, loaded.receipt_json));
  if (options.metrics) {
    options.metrics->Committed(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  const std::lock_guard lock(shared->mutex);
  const auto [it, fresh] = names.try_emplace(key);
  if (fresh) {
    Content& content = shared->contents.at(loaded.digest);
    if (content.names++ == 0) shared->Count(AdapterState::kRetired, -1);
    it->second.digest = loaded.digest;
    Move(it->second, AdapterState::kActive);
  }
  it->second.registered_ms = now;
  // Every name of a content that was found cut is healed by its new blob.
  for (auto& [other, name] : names) {
    if (name.digest == loaded.digest && name.state == AdapterState::kFailed) {
      Move(name, AdapterState::kActive);
    }
  }
  AdapterEntry entry = Describe(key, it->second);
  entry.receipt_json = loaded.receipt_json;
  return entry;
}

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
  const Key key{tenant, name};
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
  const Key key{tenant, name};
  const std::lock_guard database_lock(impl_->database_mutex);
  UnregisteredAdapter out;
  {
    const std::lock_guard lock(impl_->shared->mutex);
    const auto it = impl_->names.find(key);
    if (it == impl_->names.end()) return UnknownModel(name);
    out.digest = it->second.digest;
  }
  RETURN_IF_ERROR(impl_->store->Remove(tenant, name));
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
  const Key key{tenant, name};
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

absl::StatusOr<std::vector<AdapterEntry>> Registry::List(const std::string& tenant) const {
  const std::lock_guard database_lock(impl_->database_mutex);
  std::vector<AdapterEntry> out;
  {
    const std::lock_guard lock(impl_->shared->mutex);
    for (auto it = impl_->names.lower_bound({tenant, ""});
         it != impl_->names.end() && it->first.first == tenant; ++it) {
      out.push_back(impl_->Describe(it->first, it->second));
    }
  }
  for (AdapterEntry& entry : out) {
    ASSIGN_OR_RETURN(entry.receipt_json, impl_->store->Receipt(entry.digest));
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
