#include "coordinator/adapters/lazy_adapters.h"

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/adapters/adapter_path.h"

namespace rootstock {
namespace {

constexpr size_t kMaxKnown = 10000;  // names that strangers invent cost no more than that
constexpr char kDefaultTenant[] = "default";

}  // namespace

void LazyAdapters::Memory::Add(const Key& key, const absl::Status& status, absl::Time now) {
  if (known_.insert_or_assign(key, Known{now + lasts_, status}).second) by_age_.push_back(key);
  if (by_age_.size() <= kMaxKnown) return;
  known_.erase(by_age_.front());
  by_age_.pop_front();
}

const absl::Status* LazyAdapters::Memory::Find(const Key& key, absl::Time now) {
  const auto it = known_.find(key);
  return it == known_.end() || it->second.until <= now ? nullptr : &it->second.status;
}

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
  return missing_.Find({tenant, model}, clock_()) == nullptr;
}

uint64_t LazyAdapters::Fetch(const std::string& model, const std::string& tenant, Done done) {
  const Key key{tenant, model};
  std::unique_lock lock(mutex_);
  const uint64_t number = next_++;
  const absl::Status* known = missing_.Find(key, clock_());
  if (known == nullptr) known = refused_.Find(key, clock_());
  if (known != nullptr) {
    const absl::Status refused = *known;
    lock.unlock();
    done(refused);
    return number;
  }
  const auto [it, is_first] = waiting_.try_emplace(key);
  it->second.emplace(number, std::move(done));
  if (!is_first) return number;
  lock.unlock();
  if (post_([this, key] { Finish(key, Register(key)); })) return number;
  Finish(key, MakeError(absl::StatusCode::kResourceExhausted, Reason::kQueueFull, "model", model,
                        "too many adapters are being fetched; try again later"));
  return number;
}

void LazyAdapters::Forget(const std::string& model, const std::string& tenant, uint64_t waiting) {
  Done forgotten;  // ends outside the lock
  const std::lock_guard lock(mutex_);
  const auto it = waiting_.find({tenant, model});
  if (it == waiting_.end()) return;
  if (auto node = it->second.extract(waiting)) forgotten = std::move(node.mapped());
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
  std::map<uint64_t, Done> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting.swap(waiting_[key]);
    waiting_.erase(key);
    if (absl::IsNotFound(status)) missing_.Add(key, status, clock_());
    if (absl::IsInvalidArgument(status)) refused_.Add(key, status, clock_());
  }
  for (const auto& [number, done] : waiting) done(status);
}

}  // namespace rootstock
