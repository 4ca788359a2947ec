#include "coordinator/adapters/lazy_adapters.h"

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/adapters/adapter_path.h"

namespace rootstock {
namespace {

constexpr absl::Duration kRefusedFor = absl::Seconds(10);
constexpr size_t kMaxRefused = 10000;  // names that strangers invent cost no more than that
constexpr char kDefaultTenant[] = "default";

}  // namespace

LazyAdapters::LazyAdapters(Registry* registry, StoreUri store, std::function<absl::Time()> clock,
                           Post post)
    : registry_(registry),
      store_(store.ToString()),
      clock_(std::move(clock)),
      post_(std::move(post)) {}

std::string LazyAdapters::UriOf(const Key& key) const {
  const std::string folder = key.first == kDefaultTenant ? "" : absl::StrCat("/", key.first);
  return absl::StrCat(store_ == "file:///" ? "file://" : store_, folder, "/", key.second);
}

bool LazyAdapters::MayHold(const std::string& model, const std::string& tenant) {
  // A tenant's name becomes part of a key: only what an adapter could be called.
  if (!CheckAdapterName(model).ok() || !CheckAdapterName(tenant).ok()) return false;
  if (registry_->HasModel(model, tenant)) return false;
  const std::lock_guard lock(mutex_);
  const auto it = refused_.find({tenant, model});
  if (it == refused_.end()) return true;
  if (it->second.until > clock_()) return !absl::IsNotFound(it->second.status);
  refused_.erase(it);
  return true;
}

void LazyAdapters::Fetch(const std::string& model, const std::string& tenant, Done done) {
  const Key key{tenant, model};
  absl::Status refused;
  {
    const std::lock_guard lock(mutex_);
    const auto it = refused_.find(key);
    if (it != refused_.end() && it->second.until > clock_()) {
      refused = it->second.status;
    } else {
      std::vector<Done>& waiting = waiting_[key];
      waiting.push_back(std::move(done));
      if (waiting.size() > 1) return;
    }
  }
  if (!refused.ok()) return done(refused);
  if (post_([this, key] { Finish(key, Register(key)); })) return;
  Finish(key, MakeError(absl::StatusCode::kResourceExhausted, Reason::kQueueFull, "model", model,
                        "too many adapters are being fetched; try again later"));
}

absl::Status LazyAdapters::Register(const Key& key) {
  // It may have come between the request's look and this job.
  if (registry_->HasModel(key.second, key.first)) return absl::OkStatus();
  const std::string uri = UriOf(key);
  const absl::Status status = registry_->RegisterOwnUri(key.second, uri, key.first).status();
  if (status.ok()) {
    LogInfo("adapter ", key.second, " of tenant ", key.first, " registered from ", uri);
  } else if (!absl::IsNotFound(status)) {
    LogWarning("adapter ", key.second, " of tenant ", key.first, " from ", uri, ": ",
               std::string(status.message()));
  }
  return status;
}

void LazyAdapters::Finish(const Key& key, const absl::Status& status) {
  std::vector<Done> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting.swap(waiting_[key]);
    waiting_.erase(key);
    // A store that is away or busy is asked again at once; what it said of an adapter holds longer.
    const bool lasts = absl::IsNotFound(status) || absl::IsInvalidArgument(status);
    if (lasts && refused_.size() >= kMaxRefused) refused_.clear();
    if (lasts) refused_[key] = {clock_() + kRefusedFor, status};
  }
  for (const Done& done : waiting) done(status);
}

}  // namespace rootstock
