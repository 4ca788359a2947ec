// The registry's pins.
#include <utility>

#include "common/base/status.h"
#include "coordinator/adapters/registry_impl.h"

namespace rootstock {
namespace {

constexpr size_t kMaxGroupBytes = 255;

absl::Status PinnedOnAll(const std::string& adapter) {
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kNameTaken, "name", adapter,
                   "is pinned on all groups, not on one of them");
}

}  // namespace

absl::StatusOr<AdapterEntry> Registry::Impl::ChangePins(const Key& key, uint32_t number,
                                                        const std::string& group, bool pinned) {
  if (group.size() > kMaxGroupBytes) {
    return InvalidField(Reason::kInvalidArgument, "group", group, "at most 255 bytes");
  }
  const std::lock_guard database_lock(database_mutex);
  std::set<std::string> pins;
  RegistryStore::PinRow row{key.first, key.second, 0, group};
  {
    const std::lock_guard lock(contents->mutex);
    ASSIGN_OR_RETURN(const Names::Found found, names.Find(key, number));
    row.number = found.number;
    pins = found.version->pins;
    const bool on_all = pins.contains("");
    const bool done = pinned ? on_all || pins.contains(group)
                             : pins.empty() || (!group.empty() && !on_all && !pins.contains(group));
    if (done) return Describe(key, found.number, *found.version);
    if (!pinned && !group.empty() && on_all)
      return PinnedOnAll(AdapterRef{key.second, row.number}.Text());
  }
  RETURN_IF_ERROR(Commit([&] {
    if (pinned) return store->InsertPin(row);
    return group.empty() ? store->RemovePins(row) : store->RemovePin(row);
  }));
  const std::lock_guard lock(contents->mutex);
  ASSIGN_OR_RETURN(const Names::Found found, names.Find(key, row.number));
  std::set<std::string>& now = found.version->pins;
  const bool before = !now.empty();
  if (pinned) {
    now.insert(group);
  } else if (group.empty()) {
    now.clear();
  } else {
    now.erase(group);
  }
  CountPinned(static_cast<int>(!now.empty()) - static_cast<int>(before));
  return Describe(key, found.number, *found.version);
}

absl::StatusOr<AdapterEntry> Registry::Pin(const std::string& name, const std::string& tenant,
                                           uint32_t version, const std::string& group) {
  return impl_->ChangePins({tenant, name}, version, group, true);
}

absl::StatusOr<AdapterEntry> Registry::Unpin(const std::string& name, const std::string& tenant,
                                             uint32_t version, const std::string& group) {
  return impl_->ChangePins({tenant, name}, version, group, false);
}

absl::StatusOr<std::vector<Digest>> Registry::Unloadable(const std::string& name,
                                                         const std::string& tenant,
                                                         uint32_t version) const {
  std::set<Digest> kept;
  for (const PinnedContent& pin : Pins()) kept.insert(pin.digest);
  const std::lock_guard lock(impl_->contents->mutex);
  const Impl::Key key{tenant, name};
  RETURN_IF_ERROR(impl_->names.Find(key, version).status());
  // One tenant's unload frees nothing that another one names.
  for (const auto& [other, versions] : impl_->names.adapters()) {
    if (other.first == tenant) continue;
    for (const auto& [number, found] : versions) kept.insert(found.digest);
  }
  std::set<Digest> out;
  for (const auto& [number, found] : impl_->names.adapters().at(key)) {
    if (version != 0 && number != version) continue;
    if (!found.pins.empty()) {
      return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kNameTaken, "name",
                       AdapterRef{name, number}.Text(), "is pinned; unpin it first");
    }
    if (!kept.contains(found.digest)) out.insert(found.digest);
  }
  return std::vector<Digest>(out.begin(), out.end());
}

std::vector<PinnedContent> Registry::Pins() const {
  const std::lock_guard lock(impl_->contents->mutex);
  std::vector<PinnedContent> out;
  for (const auto& [key, versions] : impl_->names.adapters()) {
    for (const auto& [number, version] : versions) {
      for (const std::string& group : version.pins) out.push_back({version.digest, group});
    }
  }
  return out;
}

}  // namespace rootstock
