// When versions were used last: known at once, durable in batches.
#include <utility>

#include "coordinator/adapters/registry_impl.h"

namespace rootstock {

void Registry::Impl::NoteUse(const Key& key, uint32_t number, Names::Version& version) {
  if (std::exchange(version.use_saved, false)) used.emplace_back(key, number);
}

absl::Status Registry::SaveUses() {
  const std::lock_guard database_lock(impl_->database_mutex);
  std::vector<RegistryStore::VersionRow> rows;
  {
    const std::lock_guard lock(impl_->contents->mutex);
    for (const auto& [key, number] : std::exchange(impl_->used, {})) {
      const auto found = impl_->names.Find(key, number);
      if (!found.ok()) continue;  // gone since
      found->version->use_saved = true;
      rows.push_back({.tenant = key.first,
                      .name = key.second,
                      .number = number,
                      .last_used_ms = found->version->last_used_ms});
    }
  }
  if (rows.empty()) return absl::OkStatus();
  absl::Status saved = impl_->Commit([&] { return impl_->store->SaveUses(rows); });
  if (saved.ok()) return saved;
  const std::lock_guard lock(impl_->contents->mutex);
  for (const RegistryStore::VersionRow& row : rows) {
    const Impl::Key key{row.tenant, row.name};
    const auto found = impl_->names.Find(key, row.number);
    if (found.ok()) impl_->NoteUse(key, row.number, *found->version);
  }
  return saved;
}

}  // namespace rootstock
