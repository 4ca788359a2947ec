// The engine's side of attaching groups.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/adapter_name.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/layout/adapter_layout.h"
#include "coordinator/engine/coordinator_engine.h"

namespace rootstock {
namespace {

// A lost or drained group is named for so long, unless one of its name comes.
constexpr absl::Duration kRemembered = absl::Minutes(10);

absl::Status Mismatch(const std::string& field, const std::string& value, const std::string& text) {
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kGroupMismatch, field, value,
                   text);
}

// One run of a group is its leader's process.
bool SameInstance(const GroupInfo& a, const GroupInfo& b) {
  return a.ranks[0].host == b.ranks[0].host && a.ranks[0].pid == b.ranks[0].pid;
}

}  // namespace

ModelPort MakeModelPort(ModelSpec model, LoraShardingPolicy sharding) {
  ModelPort port;
  port.sharding = sharding;
  port.check_split = [model](const GroupInfo& info) -> absl::Status {
    return MakeTpPlan(model, static_cast<int>(info.tp_size)).status();
  };
  port.ways = [model, sharding](const AdapterContent& content, const GroupInfo& info,
                                const AttachReport& report) -> absl::StatusOr<AdapterWays> {
    ASSIGN_OR_RETURN(const TpPlan tp, MakeTpPlan(model, static_cast<int>(info.tp_size)));
    return FindWays(model, content.spec, tp, sharding, report.compute_dtype,
                    report.geometry.page_bytes);
  };
  return port;
}

absl::Status CoordinatorEngine::CheckGroup(const GroupInfo& info) const {
  if (!IsPlainName(info.name)) {
    return Mismatch("group", info.name, absl::StrCat("must match ", kNamePattern));
  }
  if (info.pool != "unified") return Mismatch("pool", info.pool, "only 'unified' is served");
  if (info.tp_size == 0 || info.ranks.size() != info.tp_size) {
    return Mismatch("tp_size", absl::StrCat(info.tp_size),
                    absl::StrCat(info.ranks.size(), " ranks were named"));
  }
  for (size_t i = 0; i < info.ranks.size(); ++i) {
    if (info.ranks[i].build != info.build) {
      return Mismatch("build", info.ranks[i].build,
                      absl::StrCat("of tp_rank ", i, "; the leader is of ", info.build));
    }
  }
  if (!options_.build.empty() && info.build != options_.build) {
    return Mismatch("build", info.build, absl::StrCat("the coordinator is of ", options_.build));
  }
  RETURN_IF_ERROR(options_.shape.check_split(info));
  return options_.registry->CheckBase(info.model_fingerprint);
}

// A second run under the name would take the stream from the first one, and that one take it back.
absl::Status CoordinatorEngine::CheckNameIsFree(const GroupInfo& info) const {
  const auto it = groups_.find(info.name);
  if (it == groups_.end()) return absl::OkStatus();
  const GroupRecord& record = it->second;
  const bool attached = record.engine && !record.end->over;
  if ((!attached && !record.forming) || SameInstance(record.info, info)) return absl::OkStatus();
  const RankInfo& leader = record.info.ranks[0];
  return MakeError(absl::StatusCode::kAlreadyExists, Reason::kGroupMismatch, "group", info.name,
                   absl::StrCat(attached ? "already attached from " : "already forming from ",
                                leader.host, " pid ", leader.pid));
}

// Nothing refers to such a record: its requests went back to the router when it was lost.
bool CoordinatorEngine::IsForgotten(const GroupRecord& record) const {
  return record.lost_since && options_.clock() - *record.lost_since >= kRemembered;
}

void CoordinatorEngine::ForgetGroups() {
  const std::lock_guard lock(groups_mutex_);
  std::erase_if(groups_, [this](const auto& entry) {
    if (!IsForgotten(entry.second)) return false;
    options_.metrics->Forget(entry.first);
    router_->Forget(entry.first);
    return true;
  });
}

// Under groups_mutex_.
void CoordinatorEngine::WasLost(GroupRecord& record) {
  record.lost_since = options_.clock();
  forgetting_->PostAt(*record.lost_since + kRemembered, [this] { ForgetGroups(); });
}

absl::StatusOr<GroupDirectory::Order> CoordinatorEngine::OnHello(const GroupInfo& info) {
  absl::Status status = CheckGroup(info);
  std::shared_ptr<GroupEngine> old;  // ends outside the lock: it may join its thread
  const std::lock_guard lock(groups_mutex_);
  if (status.ok()) status = CheckNameIsFree(info);
  RETURN_IF_ERROR(status);  // its stream logs that
  GroupRecord& record = groups_[info.name];
  if (const auto end = std::exchange(record.end, nullptr)) {
    record.reforming_since.reset();
    if (end->over && !SameInstance(record.info, info)) {
      record.reforming_since = absl::FromUnixMicros(end->at_us);
      record.drained_before = end->drained;
    }
  }
  old = std::move(record.engine);
  // The group itself says that its former stream is over, whatever the transport knows yet.
  if (old) old->Lose(absl::UnavailableError("the group attached again"));
  record.info = info;
  record.epoch = {options_.registry->incarnation(), next_attach_++};
  record.forming = true;
  record.last.reset();
  record.lost_since.reset();
  options_.metrics->GroupIs(info.name, "forming");
  return Order{record.epoch, options_.limits};
}

void CoordinatorEngine::OnFormingLost(const std::string& group, const Epoch& epoch) {
  const std::lock_guard lock(groups_mutex_);
  const auto it = groups_.find(group);
  if (it == groups_.end() || it->second.epoch != epoch) return;
  GroupRecord& record = it->second;
  record.forming = false;
  record.last.emplace();
  record.last->info = record.info;
  record.last->epoch = epoch;
  record.last->state = "broken";
  WasLost(record);
  options_.metrics->GroupIs(group, "broken");
}

void CoordinatorEngine::ShowState(const std::string& group, uint64_t attach, const char* state) {
  const std::lock_guard lock(groups_mutex_);
  const auto it = groups_.find(group);
  if (it == groups_.end() || it->second.epoch.attach != attach) return;
  options_.metrics->GroupIs(group, state);
}

// On the router's thread, which may join the engine's.
void CoordinatorEngine::OnGroupGone(const std::string& group, uint64_t attach) {
  std::shared_ptr<GroupEngine> over;  // ends outside the lock
  const std::lock_guard lock(groups_mutex_);
  const auto it = groups_.find(group);
  if (it == groups_.end()) return;
  GroupRecord& record = it->second;
  if (record.epoch.attach != attach || !record.engine) return;
  record.last = record.engine->Snapshot();
  WasLost(record);
  over = std::move(record.engine);
}

GroupCallbacks CoordinatorEngine::CallbacksFor(const std::string& group, uint64_t attach) {
  Router* router = router_.get();
  GroupCallbacks out;
  out.close = [this](const RequestPtr& r, const absl::Status& status) { Close(r, status); };
  out.admitted = [this, router, attach](LiveRequest& request) {
    OnAdmitted(request);
    router->Admitted(attach, request.number);
  };
  out.ended = [router, attach](RequestNumber n) { router->Ended(attach, n); };
  out.returned = [router, attach](std::vector<RequestPtr> requests) {
    router->Returned(attach, std::move(requests));
  };
  out.residency = [this, router, attach](const Digest& digest, bool resident) {
    queue_->SetResident(attach, digest.Hex(), resident);
    router->ResidencyChanged(attach, digest, resident);
  };
  out.slow = [router, attach](const Digest& digest) { router->FetchIsSlow(attach, digest); };
  out.draining = [this, group, attach] { ShowState(group, attach, "draining"); };
  out.gone = [this, router, group, attach](const absl::Status& why, bool drained) {
    if (drained) {
      LogInfo("group '", group, "' drained and left");
    } else if (draining_) {
      LogInfo("group '", group, "' let go: this coordinator ends");
    } else {
      LogWarning("group '", group, "' lost: ", std::string(why.message()));
    }
    ShowState(group, attach, drained ? "drained" : "broken");
    queue_->Forget(attach);
    router->Gone(attach, [this, group, attach] { OnGroupGone(group, attach); });
  };
  return out;
}

absl::StatusOr<std::shared_ptr<GroupListener>> CoordinatorEngine::OnAttached(
    const GroupInfo& info, const AttachReport& report, std::shared_ptr<GroupLink> link) {
  const PageGeometry& g = report.geometry;
  if (g.num_pages < 2 || g.page_tokens == 0 || g.page_bytes == 0) {
    return Mismatch("num_pages", absl::StrCat(g.num_pages), "no page is left for a token");
  }
  const std::lock_guard lock(groups_mutex_);
  const auto it = groups_.find(info.name);
  if (it == groups_.end() || it->second.epoch != report.epoch || !it->second.forming) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch, "epoch",
                     absl::StrCat(report.epoch.incarnation, ".", report.epoch.attach),
                     "a later attach of the group was ordered");
  }
  GroupConfig config{.info = info,
                     .limits = options_.limits,
                     .report = report,
                     .pool = options_.pool,
                     .step_timeout = options_.step_timeout,
                     .clock = options_.clock,
                     .metrics = options_.metrics};
  config.ways = [shape = options_.shape, info, report](const AdapterContent& content) {
    return shape.ways(content, info, report);
  };
  config.find_digest = [registry = options_.registry](const Digest& digest) {
    return registry->FindDigest(digest);
  };
  config.has_name = [registry = options_.registry](const Digest& digest) {
    return registry->HasName(digest);
  };
  const uint64_t attach = report.epoch.attach;
  ASSIGN_OR_RETURN(std::unique_ptr<GroupEngine> made,
                   GroupEngine::Create(std::move(config), std::move(link),
                                       options_.queues(absl::StrCat("grp-", info.name)),
                                       CallbacksFor(info.name, attach)));
  std::shared_ptr<GroupEngine> engine = std::move(made);
  for (const ResidentAdapter& adapter : engine->Snapshot().adapters) {
    queue_->SetResident(attach, adapter.digest.Hex(), true);
  }
  it->second.engine = engine;
  it->second.end = engine->stream_end();
  it->second.forming = false;
  options_.metrics->GroupIs(info.name, "ready");
  if (const auto since = std::exchange(it->second.reforming_since, std::nullopt)) {
    options_.metrics->Reformed(info.name, it->second.drained_before, options_.clock() - *since);
  }
  router_->GroupUp(attach, engine, options_.limits.max_num_seqs);
  LogInfo("group '", info.name, "' attached: tp_size ", info.tp_size, ", ", g.num_pages,
          " pages of ", g.page_tokens, " tokens, ", report.adapters.size(), " adapters in place");
  return engine->MakeListener();
}

}  // namespace rootstock
