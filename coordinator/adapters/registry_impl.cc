#include "coordinator/adapters/registry_impl.h"

#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace rootstock {

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
  RETURN_IF_ERROR(ShowRevision());
  ASSIGN_OR_RETURN(const std::vector<RegistryStore::NameRow> rows, store->Names());
  ASSIGN_OR_RETURN(const std::vector<AdapterContent> contents, store->Contents());
  std::set<Digest> keep;
  for (const AdapterContent& c : contents) {
    keep.insert(c.digest);
    shared->contents[c.digest].content = std::make_shared<const AdapterContent>(c);
  }
  RETURN_IF_ERROR(shared->blobs.Open(keep));
  for (const RegistryStore::NameRow& row : rows) {
    // Its requests would be answered by the base.
    if (row.name == options.base_name) {
      return MakeError(absl::StatusCode::kAlreadyExists, Reason::kNameTaken, "served-model-name",
                       row.name,
                       absl::StrCat("an adapter of tenant '", row.tenant,
                                    "' has this name; the base needs another one"));
    }
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

absl::Status Registry::Impl::Commit(const std::function<absl::Status()>& change) {
  const auto begin = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(change());
  if (options.metrics) {
    options.metrics->Committed(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return ShowRevision();
}

absl::Status Registry::Impl::ShowRevision() {
  if (!options.metrics) return absl::OkStatus();
  ASSIGN_OR_RETURN(const uint64_t revision, store->Revision());
  options.metrics->IsAt(revision);
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
  RETURN_IF_ERROR(Commit([&] {
    return store->Insert({key.first, key.second, loaded.digest, now}, *held, loaded.receipt_json);
  }));
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

}  // namespace rootstock
