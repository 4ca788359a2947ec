// WorkerRuntime: adapters that come and go.
#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "worker/runtime/worker_runtime.h"

namespace rootstock {

// The pages are held until every tp_rank has ended writing, well or not.
absl::Status WorkerRuntime::Load(CommandId id, const LoadAdapter& load) {
  RETURN_IF_ERROR(CheckLoad(load, Context()));
  MarkPages(load.pages, true);
  loading_[load.digest] = {id, load.pages};
  model_.loader().Load(id, load);
  return absl::OkStatus();
}

absl::Status WorkerRuntime::Settle(CommandId id, const absl::Status& outcome) {
  const auto it = std::find_if(loading_.begin(), loading_.end(),
                               [id](const auto& entry) { return entry.second.id == id; });
  if (it == loading_.end()) {
    model_.loader().Forget(id);
    return absl::OkStatus();
  }
  const auto [digest, load] = *it;
  loading_.erase(it);
  absl::Status status;
  if (outcome.ok() && !load.in_table) {
    status = adapters_.Add(digest, model_.loader().Take(id));
  } else if (!outcome.ok()) {
    // Eager steps may still read the tables.
    if (load.in_table) status = model_.Wait(model_.Mark());
    MarkPages(load.pages, false);
    adapters_.Drop(digest);
  }
  model_.loader().Forget(id);
  return status;
}

absl::Status WorkerRuntime::ForgetLoads() {
  model_.loader().ForgetAll();
  model_.loader().host().UnpinAll();
  for (const auto& [digest, load] : loading_) {
    MarkPages(load.pages, false);
    adapters_.Drop(digest);
  }
  loading_.clear();
  return absl::OkStatus();
}

absl::Status WorkerRuntime::AwaitLoads(const StepPlan& plan) {
  if (!plan.eager || loading_.empty()) return absl::OkStatus();
  for (const Digest& digest : AdaptersOf(plan, sequences_)) {
    const auto load = loading_.find(digest);
    if (load == loading_.end() || load->second.in_table) continue;
    ASSIGN_OR_RETURN(auto adapter, model_.loader().TakeEarly(load->second.id));
    RETURN_IF_ERROR(adapters_.Add(digest, std::move(adapter)));
    load->second.in_table = true;
  }
  return absl::OkStatus();
}

std::function<absl::Status(int)> WorkerRuntime::FollowLoads(const StepPlan& plan) {
  if (!plan.eager) return nullptr;
  std::vector<CommandId> loads;
  for (const Digest& digest : AdaptersOf(plan, sequences_)) {
    if (const auto it = loading_.find(digest); it != loading_.end()) loads.push_back(it->second.id);
  }
  return [this, loads](int layer) {
    for (const CommandId load : loads) RETURN_IF_ERROR(model_.loader().Follow(load, layer));
    return absl::OkStatus();
  };
}

absl::StatusOr<TierBytes> WorkerRuntime::Drop(const DropAdapter& drop) {
  TierBytes freed;
  if (drop.tiers.has(Tier::kDevice)) {
    if (loading_.contains(drop.digest)) {
      return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInvalidArgument,
                       "drop.digest", drop.digest.Short(), "is being loaded");
    }
    if (const DeviceAdapter* adapter = adapters_.Find(drop.digest); adapter != nullptr) {
      freed.device = uint64_t{adapter->pages().size()} * model_.info().geometry.page_bytes;
      MarkPages(adapter->pages(), false);
      adapters_.Drop(drop.digest);
    }
  }
  if (drop.tiers.has(Tier::kHost)) freed.host = model_.loader().host().Drop(drop.digest);
  return freed;
}

void WorkerRuntime::MarkPages(const std::vector<PageId>& pages, bool held) {
  for (const PageId page : pages) adapter_pages_[page.value] = held;
}

}  // namespace rootstock
