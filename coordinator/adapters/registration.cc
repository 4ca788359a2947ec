// How the registry takes a new version in.
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/adapters/registry_impl.h"

namespace rootstock {
namespace {

constexpr int kMaxFetches = 2;  // of a name
constexpr int64_t kRetryAfterMs = 1000;

}  // namespace

absl::Status Registry::Impl::BeginFetch(const Key& key) {
  const std::lock_guard lock(contents->mutex);
  int& running = fetching[key];
  if (running >= kMaxFetches) {
    return WithRetryAfter(
        MakeError(absl::StatusCode::kResourceExhausted, Reason::kQueueFull, "name", key.second,
                  absl::StrCat(running, " fetches for it run already")),
        kRetryAfterMs);
  }
  ++running;
  contents->Count(AdapterState::kStaged, 1);
  return absl::OkStatus();
}

void Registry::Impl::EndFetch(const Key& key) {
  const std::lock_guard lock(contents->mutex);
  contents->Count(AdapterState::kStaged, -1);
  if (--fetching.at(key) == 0) fetching.erase(key);
}

void Registry::Impl::CountStaged(int by) {
  const std::lock_guard lock(contents->mutex);
  contents->Count(AdapterState::kStaged, by);
}

void Registry::Impl::CountRejected(const absl::Status& status) const {
  const auto detail = GetErrorDetail(status);
  if (detail && options.metrics) options.metrics->Rejected(detail->reason);
}

absl::StatusOr<AdapterEntry> Registry::Impl::RegisterInTurn(
    const Key& key, bool new_version,
    const std::function<absl::StatusOr<LoadedAdapter>()>& source) {
  {
    std::unique_lock lock(contents->mutex);
    staged_changed.wait(lock, [&] { return !staged.contains(key); });
    staged.insert(key);
  }
  const absl::StatusOr<LoadedAdapter> loaded = source();
  absl::StatusOr<AdapterEntry> entry = absl::UnknownError("");
  if (loaded.ok()) {
    entry = Store(key, *loaded, new_version);
  } else {
    entry = loaded.status();
    CountRejected(loaded.status());
  }
  const std::lock_guard lock(contents->mutex);
  staged.erase(key);
  staged_changed.notify_all();
  return entry;
}

absl::StatusOr<Registry::Impl::Decision> Registry::Impl::Decide(const Key& key,
                                                                const LoadedAdapter& loaded,
                                                                bool new_version) {
  const Digest& digest = loaded.digest;
  if (names.aliases().contains(key)) {
    return MakeError(absl::StatusCode::kAlreadyExists, Reason::kNameTaken, "name", key.second,
                     "is an alias");
  }
  const auto it = names.adapters().find(key);
  if (it == names.adapters().end()) {
    RETURN_IF_ERROR(CheckTenantBytes(key.first, loaded));
    return Decision{Registration::kNext};
  }
  const auto& [newest, version] = *it->second.rbegin();
  if (version.digest == digest) {
    return Decision{
        version.state == AdapterState::kActive ? Registration::kThere : Registration::kHeal,
        newest};
  }
  if (new_version) {
    RETURN_IF_ERROR(CheckTenantBytes(key.first, loaded));
    return Decision{Registration::kNext};
  }
  for (const auto& [number, older] : it->second) {
    if (older.digest == digest && older.state == AdapterState::kFailed) {
      return Decision{Registration::kHeal, number};
    }
  }
  return MakeError(
      absl::StatusCode::kAlreadyExists, Reason::kNameTaken, "name", key.second,
      absl::StrCat("holds other content (", version.digest.Short(), ", not ", digest.Short(),
                   "); register it as a new version, or unregister the name first"));
}

absl::Status Registry::Impl::CheckTenantBytes(const std::string& tenant,
                                              const LoadedAdapter& loaded) const {
  const uint64_t bytes = loaded.canonical.size(), max = options.max_tenant_bytes;
  const uint64_t others = tenant_bytes.Others(tenant, loaded.digest, bytes);
  if (max == 0 || others + bytes <= max) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, Reason::kQuota, "tenant", tenant,
                   absl::StrCat("its adapters' ", others, " bytes and this one's ", bytes,
                                " exceed --max-tenant-bytes, ", max));
}

absl::StatusOr<AdapterEntry> Registry::Impl::Store(const Key& key, const LoadedAdapter& loaded,
                                                   bool new_version) {
  // Who waits for the content to go hears that it stays, with no lock held.
  std::vector<std::function<void(bool)>> waiting;
  const absl::Cleanup tell = [&] {
    for (const auto& done : waiting) done(/*gone=*/false);
  };
  AdapterHandle held;  // nobody removes the blob between its rename and the commit
  bool there = false;
  {
    const std::lock_guard lock(contents->mutex);
    ASSIGN_OR_RETURN(const Decision decision, Decide(key, loaded, new_version));
    Contents::Content& content = contents->by_digest[loaded.digest];
    if (!content.content) {
      content.content = std::make_shared<const AdapterContent>(
          AdapterContent{loaded.digest, loaded.spec, loaded.canonical.size()});
    }
    held = contents->MakeHandle(content);
    // One whose blob has vanished meanwhile gets it anew.
    there = decision.what == Registration::kThere &&
            !contents->blobs.IsLost(loaded.digest, loaded.canonical.size());
  }
  if (!there && !contents->blobs.Holds(loaded.digest, loaded.canonical.size())) {
    RETURN_IF_ERROR(contents->blobs.Put(loaded.digest, loaded.canonical));
  }
  const int64_t now = options.unix_ms();
  const std::lock_guard database_lock(database_mutex);
  Decision decision;
  {
    // An alias may have taken the name meanwhile, or the version that was there may be gone.
    const std::lock_guard lock(contents->mutex);
    ASSIGN_OR_RETURN(decision, Decide(key, loaded, new_version));
  }
  if (decision.what == Registration::kNext) {
    RETURN_IF_ERROR(Commit([&]() -> absl::Status {
      ASSIGN_OR_RETURN(decision.number,
                       store->Insert({key.first, key.second, 0, loaded.digest, now}, *held,
                                     loaded.receipt_json, loaded.config_json));
      return absl::OkStatus();
    }));
  }
  // A version goes on telling what the config said that it came with.
  std::string config = loaded.config_json;
  if (decision.what != Registration::kNext) {
    ASSIGN_OR_RETURN(config, store->Config(key.first, key.second, decision.number));
  }
  const std::lock_guard lock(contents->mutex);
  Heal(loaded.digest);
  waiting.swap(contents->by_digest.at(loaded.digest).when_gone);
  AdapterEntry entry = ShowRegistered(key, decision.number, loaded, now);
  entry.config_json = std::move(config);
  return entry;
}

// Under the mutex. `now` is of a version that is new.
AdapterEntry Registry::Impl::ShowRegistered(const Key& key, uint32_t number,
                                            const LoadedAdapter& loaded, int64_t now) {
  Names::Version& version = names.Add(key, number);
  if (version.state == AdapterState::kStaged) {
    Contents::Content& content = contents->by_digest.at(loaded.digest);
    if (content.names++ == 0) contents->Count(AdapterState::kRetired, -1);
    contents->CountStored(content);
    tenant_bytes.Add(key.first, loaded.digest, content.content->blob_bytes);
    version.digest = loaded.digest;
    version.registered_ms = now;
    Move(version, AdapterState::kActive);
  }
  AdapterEntry entry = Describe(key, number, version);
  entry.receipt_json = loaded.receipt_json;
  return entry;
}

// Every version of a content that was found cut has its new blob.
void Registry::Impl::Heal(const Digest& digest) {
  Contents::Content& content = contents->by_digest.at(digest);
  if (!std::exchange(content.lost, false)) return;
  for (auto& [key, versions] : names.adapters()) {
    for (auto& [number, version] : versions) {
      if (version.digest == digest && version.state == AdapterState::kFailed) {
        Move(version, AdapterState::kActive);
      }
    }
  }
}

}  // namespace rootstock
