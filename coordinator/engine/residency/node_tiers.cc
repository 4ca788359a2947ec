#include "coordinator/engine/residency/node_tiers.h"

namespace rootstock {

bool NodeTiers::Apply(const TierChange& change) {
  const std::lock_guard lock(mutex_);
  const CachedAdapter& adapter = change.adapter;
  const auto it = held_.find(adapter.digest);
  if (it == held_.end() && !change.present) return false;
  Held& held = it == held_.end() ? held_[adapter.digest] : it->second;
  const bool host = adapter.tier == Tier::kHost;
  bool& present = host ? held.on_host : held.on_disk;
  uint64_t& bytes = host ? held.host_bytes : held.disk_bytes;
  Totals& totals = host ? host_ : disk_;
  const bool news = present != change.present;
  totals.adapters += (change.present ? 1 : 0) - (present ? 1 : 0);
  totals.bytes -= bytes;
  present = change.present;
  bytes = change.present ? adapter.bytes : 0;
  totals.bytes += bytes;
  if (!held.on_host && !held.on_disk) held_.erase(Digest(adapter.digest));
  return news;
}

bool NodeTiers::Has(const Digest& digest, Tier tier) const {
  const std::lock_guard lock(mutex_);
  const auto it = held_.find(digest);
  if (it == held_.end()) return false;
  return tier == Tier::kHost ? it->second.on_host : it->second.on_disk;
}

RefetchFrom NodeTiers::FromOf(const Digest& digest) const {
  return Has(digest, Tier::kHost)   ? RefetchFrom::kHost
         : Has(digest, Tier::kDisk) ? RefetchFrom::kDisk
                                    : RefetchFrom::kRemote;
}

NodeTiers::Totals NodeTiers::Of(Tier tier) const {
  const std::lock_guard lock(mutex_);
  return tier == Tier::kHost ? host_ : disk_;
}

std::vector<CachedAdapter> NodeTiers::List() const {
  const std::lock_guard lock(mutex_);
  std::vector<CachedAdapter> out;
  out.reserve(host_.adapters + disk_.adapters);
  for (const auto& [digest, held] : held_) {
    if (held.on_host) out.push_back({digest, Tier::kHost, held.host_bytes});
    if (held.on_disk) out.push_back({digest, Tier::kDisk, held.disk_bytes});
  }
  return out;
}

}  // namespace rootstock
