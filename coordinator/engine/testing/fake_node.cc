// The tiers of a fake group's node, and the commands that move adapters between them.
#include <algorithm>
#include <utility>

#include "coordinator/engine/testing/fake_group.h"

namespace rootstock {

void FakeGroup::CompleteOther(size_t index) {
  const std::lock_guard lock(mutex_);
  Pending pending = std::move(others_[index]);
  others_.erase(others_.begin() + static_cast<long>(index));
  Completion completion{pending.id, absl::OkStatus(), {}};
  if (const auto* fetch = std::get_if<PrefetchAdapter>(&pending.kind)) EndFetch(*fetch, completion);
  if (const auto* load = std::get_if<LoadAdapter>(&pending.kind)) EndLoad(*load, completion);
  if (const auto* drop = std::get_if<DropAdapter>(&pending.kind)) EndDrop(*drop, completion);
  TellChanges(completion);
  listener_->OnCompletion(std::move(completion));
}

void FakeGroup::TellChanges(Completion& completion) {
  completion.tier_changes = std::exchange(changes_, {});
  for (const TierChange& change : completion.tier_changes) {
    if (change.adapter.tier == Tier::kHost && change.present) {
      told_on_host_.insert(change.adapter.digest);
    }
  }
}

void FakeGroup::Hold(std::vector<Digest>& tier, Tier which, const Digest& digest) {
  const size_t room = which == Tier::kHost ? host_room : disk_room;
  const uint64_t bytes = which == Tier::kHost ? kHostBytes : kDiskBytes;
  if (std::erase(tier, digest) == 0) changes_.push_back({{digest, which, bytes}, true});
  tier.push_back(digest);
  for (size_t i = 0; i < tier.size() && tier.size() > room;) {
    const Digest oldest = tier[i];
    const bool pinned = which == Tier::kDisk && pinned_.contains(oldest);
    pinned || oldest == digest ? void(++i) : void(Lose(tier, which, oldest));
  }
}

uint64_t FakeGroup::Lose(std::vector<Digest>& tier, Tier which, const Digest& digest) {
  if (std::erase(tier, Digest(digest)) == 0) return 0;
  const uint64_t bytes = which == Tier::kHost ? kHostBytes : kDiskBytes;
  changes_.push_back({{digest, which, bytes}, false});
  return bytes;
}

void FakeGroup::EndFetch(const PrefetchAdapter& fetch, Completion& completion) {
  if (auto node = fail_fetch_.extract(fetch.digest); !node.empty()) {
    completion.outcome = node.mapped();
    return;
  }
  const auto has = [&](const std::vector<Digest>& tier) {
    return std::count(tier.begin(), tier.end(), fetch.digest) > 0;
  };
  completion.source = has(host_)                         ? FetchSource::kHost
                      : has(disk_)                       ? FetchSource::kDisk
                      : in_store_.contains(fetch.digest) ? FetchSource::kObject
                                                         : FetchSource::kCoordinator;
  completion.bytes = kDiskBytes;
  Hold(disk_, Tier::kDisk, fetch.digest);
  Hold(host_, Tier::kHost, fetch.digest);
  prefetched_.insert(fetch.digest);
}

std::optional<absl::Status> FakeGroup::LoadFault(const Digest& digest) const {
  if (const auto it = fail_load_.find(digest); it != fail_load_.end()) return it->second;
  if (std::count(host_.begin(), host_.end(), digest) == 0 &&
      std::count(disk_.begin(), disk_.end(), digest) == 0) {
    return absl::NotFoundError("the content is on no tier of the node any more");
  }
  return std::nullopt;
}

// A host copy that is gone is made again from the disk.
void FakeGroup::EndLoad(const LoadAdapter& load, Completion& completion) {
  completion.outcome = LoadFault(load.digest).value_or(absl::OkStatus());
  fail_load_.erase(load.digest);
  Resident& resident = residents_[load.digest];
  resident.complete = completion.outcome.ok();
  resident.failed = !resident.complete;
}

void FakeGroup::EndDrop(const DropAdapter& drop, Completion& completion) {
  const auto fault = fail_drop_.find(drop.digest);
  const bool on_disk = fault != fail_drop_.end() && fault->second.second;
  if (fault != fail_drop_.end() && (!on_disk || drop.tiers.has(Tier::kDisk))) {
    completion.outcome = fault->second.first;
    if (!on_disk && !completion.outcome.ok()) return;
  }
  if (drop.tiers.has(Tier::kDevice)) residents_.erase(drop.digest);
  if (drop.tiers.has(Tier::kHost)) completion.freed.host = Lose(host_, Tier::kHost, drop.digest);
  if (drop.tiers.has(Tier::kDisk) && completion.outcome.ok()) {
    completion.freed.disk = Lose(disk_, Tier::kDisk, drop.digest);
  }
  if (drop.tiers.has(Tier::kHost)) {
    prefetched_.erase(drop.digest);
    told_on_host_.erase(drop.digest);
  }
}

}  // namespace rootstock
