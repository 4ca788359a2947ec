// What a Member hears and tells of the host and disk tiers.
#include <algorithm>

#include "common/base/status.h"
#include "common/wire/plan_wire.h"
#include "rootstock/v1/group.pb.h"
#include "worker/link/member.h"

namespace rootstock {
namespace {

// Of the nodes' tiers, in one message: gRPC takes 4 MB, and each is under 64 bytes.
constexpr size_t kMostTold = 16384;

}  // namespace

absl::StatusOr<AttachReport> Member::Attach(const std::string& bytes) {
  beside_.clear();
  waits_for_others_ = false;
  if (prefetcher_ != nullptr) prefetcher_->ForgetAll();
  cache_.UnpinAll();
  v1::AttachOrder wire;
  wire.ParseFromString(bytes);
  ASSIGN_OR_RETURN(const AttachOrder order, FromProto(wire));
  absl::StatusOr<AttachReport> report = executor_.Attach(order.epoch, order.limits);
  RETURN_IF_ERROR(bus_.Agree(report.status()));
  // Loads are conjunctions, so all ranks hold the same adapters; anything else is a bug of ours.
  v1::AttachReport mine;
  ToProto(*report, &mine);
  for (const std::string& other : bus_.AllGather(mine.SerializeAsString())) {
    if (other == mine.SerializeAsString()) continue;
    return absl::InternalError("tp_ranks report different adapters or pages at attach");
  }
  TakeChangesHere();
  untold_.clear();
  std::vector<TierChange> held = executor_.adapters().HostTier();
  if (prefetcher_ != nullptr) {
    const std::vector<TierChange> on_disk = cache_.List();
    held.insert(held.end(), on_disk.begin(), on_disk.end());
  }
  const std::vector<std::string> leaders = bus_.AllGatherEqual(prefetcher_ != nullptr ? "L" : "-");
  tiers_.Reset(bus_.tp_size(), static_cast<int>(std::count(leaders.begin(), leaders.end(), "L")));
  const std::vector<std::string> all = bus_.AllGather(EncodeChanges(held));
  for (int r = 0; r < bus_.tp_size(); ++r) tiers_.Apply(r, DecodeChanges(all[r]));
  tiers_.TakeChanges();
  report->cached = Tell(tiers_.List());
  return report;
}

std::vector<CachedAdapter> Member::Tell(std::vector<CachedAdapter> cached) {
  const size_t told = std::min(cached.size(), kMostTold);
  for (size_t i = told; i < cached.size(); ++i) untold_.push_back({cached[i], true});
  cached.resize(told);
  return cached;
}

void Member::TellChanges(Completion& completion) {
  const auto end = untold_.begin() + std::min<ptrdiff_t>(untold_.size(), kMostTold);
  completion.tier_changes.insert(completion.tier_changes.end(), untold_.begin(), end);
  untold_.erase(untold_.begin(), end);
}

std::vector<TierChange> Member::TakeChangesHere() {
  std::vector<TierChange> out = executor_.adapters().TakeHostChanges();
  if (prefetcher_ != nullptr) {
    const std::vector<TierChange> disk = cache_.TakeChanges();
    out.insert(out.end(), disk.begin(), disk.end());
  }
  return out;
}

void Member::ShareChanges(const std::vector<TierChange>& mine) {
  const std::vector<std::string> all = bus_.AllGather(EncodeChanges(mine));
  for (int r = 0; r < bus_.tp_size(); ++r) tiers_.Apply(r, DecodeChanges(all[r]));
  const std::vector<TierChange> joint = tiers_.TakeChanges();
  untold_.insert(untold_.end(), joint.begin(), joint.end());
}

}  // namespace rootstock
