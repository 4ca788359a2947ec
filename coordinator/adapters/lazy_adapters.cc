#include "coordinator/adapters/lazy_adapters.h"

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/adapters/adapter_path.h"

namespace rootstock {
namespace {

constexpr absl::Duration kMissingFor = absl::Seconds(10);
constexpr size_t kMaxMissing = 10000;  // names that strangers invent cost no more than that
constexpr char kDefaultTenant[] = "default";

}  // namespace

LazyAdapters::LazyAdapters(Registry* registry, StoreUri store, std::function<absl::Time()> clock)
    : registry_(registry), store_(store.ToString()), clock_(std::move(clock)) {}

std::string LazyAdapters::UriOf(const Key& key) const {
  const std::string folder = key.first == kDefaultTenant ? "" : absl::StrCat("/", key.first);
  return absl::StrCat(store_ == "file:///" ? "file://" : store_, folder, "/", key.second);
}

bool LazyAdapters::MayHold(const std::string& model, const std::string& tenant) {
  // A tenant's name becomes part of a key: only what an adapter could be called.
  if (!CheckAdapterName(model).ok() || !CheckAdapterName(tenant).ok()) return false;
  if (registry_->HasModel(model, tenant)) return false;
  const std::lock_guard lock(mutex_);
  const auto it = missing_.find({tenant, model});
  if (it == missing_.end()) return true;
  if (it->second > clock_()) return false;
  missing_.erase(it);
  return true;
}

absl::Status LazyAdapters::Fetch(const std::string& model, const std::string& tenant) {
  const Key key{tenant, model};
  const std::string uri = UriOf(key);
  // Others may have waited for the one that registered it.
  if (registry_->HasModel(model, tenant)) return absl::OkStatus();
  const absl::Status status = registry_->Register(model, uri, tenant).status();
  if (status.ok()) {
    LogInfo("adapter ", model, " of tenant ", tenant, " registered from ", uri);
    return status;
  }
  if (absl::IsNotFound(status)) {
    Remember(key);
  } else {
    LogWarning("adapter ", model, " of tenant ", tenant, " from ", uri, ": ",
               std::string(status.message()));
  }
  return status;
}

void LazyAdapters::Remember(const Key& key) {
  const std::lock_guard lock(mutex_);
  if (missing_.size() >= kMaxMissing) missing_.clear();
  missing_[key] = clock_() + kMissingFor;
}

}  // namespace rootstock
