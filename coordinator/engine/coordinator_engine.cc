#include "coordinator/engine/coordinator_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/engine/counted_sink.h"

namespace rootstock {
namespace {

// What waits for an adapter of the registry, and for a name that is still to be found.
std::string QueueName(const AdapterHandle& adapter) {
  return adapter ? adapter->digest.Hex() : std::string();
}
std::string QueueName(const GenerateRequest& request) {
  return absl::StrCat(request.tenant, "/", request.model);
}

}  // namespace

CoordinatorEngine::CoordinatorEngine(EngineOptions options)
    : options_(std::move(options)),
      queue_(std::make_shared<QueueBound>(
          options_.max_queued,
          [metrics = options_.metrics](int more) { metrics->queue_requests.Add(more); })) {
  router_ = std::make_unique<Router>(
      options_.queues("router"), options_.clock,
      [this](const RequestPtr& request, const absl::Status& status) { Close(request, status); },
      [registry = options_.registry](const Digest& digest) { return registry->FindDigest(digest); },
      [registry = options_.registry](const Digest& digest) { return registry->HasName(digest); });
  forgetting_ = options_.queues("forget");
}

CoordinatorEngine::~CoordinatorEngine() {
  draining_ = true;
  forgetting_->Stop();
  std::vector<std::shared_ptr<GroupEngine>> engines;
  {
    const std::lock_guard lock(groups_mutex_);
    for (const auto& [name, record] : groups_) engines.push_back(record.engine);
  }
  for (const auto& engine : engines) {
    if (engine) engine->Stop();  // their callbacks call the router
  }
  engines.clear();
  router_.reset();
  {
    const std::lock_guard lock(groups_mutex_);
    groups_.clear();  // joins the groups' threads: nobody holds a request any more
  }
  std::map<uint64_t, RequestPtr> left;
  {
    const std::lock_guard lock(live_mutex_);
    left = live_;
  }
  for (const auto& [number, request] : left) {
    Close(request, MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "request",
                             request->resolved.request_id, "the coordinator stopped"));
  }
}

absl::StatusOr<BoundModel> CoordinatorEngine::ResolveModel(const GenerateRequest& request) {
  if (request.model == options_.model.name) return BoundModel{nullptr, request.model};
  auto bound = options_.registry->Resolve(request.model, request.tenant, request.request_id);
  if (!bound.ok()) options_.metrics->Looked(AdapterLookup::kUnknown);
  return bound;
}

absl::Status CoordinatorEngine::Precheck(const GenerateRequest& request) const {
  if (draining_) {
    return MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "coordinator", "",
                     "it is draining and takes no new requests");
  }
  RETURN_IF_ERROR(CheckFields(request, options_.model));
  RETURN_IF_ERROR(options_.text.check_stop(request.stop));
  if (request.deadline <= options_.wall_clock()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, Reason::kDeadlineExceeded, "deadline", "",
                     "it had passed when the request came");
  }
  return request.place ? absl::OkStatus() : queue_->Check();
}

absl::StatusOr<std::shared_ptr<QueuePlace>> CoordinatorEngine::Enter(
    const GenerateRequest& request) {
  RETURN_IF_ERROR(Precheck(request));
  return queue_->Enter(QueueName(request), options_.clock());
}

// Everything that can refuse a request before anybody hears of it.
absl::StatusOr<RequestPtr> CoordinatorEngine::Admit(GenerateRequest& request) {
  RETURN_IF_ERROR(Precheck(request));
  if (request.request_id.empty()) {
    request.request_id = absl::StrFormat("req-%016x", options_.random());
  }
  ASSIGN_OR_RETURN(BoundModel bound, ResolveModel(request));
  std::shared_ptr<QueuePlace> place = std::move(request.place);
  if (place) {
    place->Rename(QueueName(bound.content));
  } else {
    ASSIGN_OR_RETURN(place, queue_->Enter(QueueName(bound.content), options_.clock()));
  }
  std::vector<int32_t> prompt;
  if (request.text) {
    ASSIGN_OR_RETURN(prompt, options_.text.encode(*request.text, request.add_special_tokens,
                                                  request.parse_special));
  } else {
    prompt = *request.token_ids;
  }
  ASSIGN_OR_RETURN(ResolvedRequest resolved, Resolve(request, options_.model, std::move(prompt),
                                                     std::move(bound.content), options_.random()));
  resolved.resolved_model = std::move(bound.resolved);
  auto live = std::make_shared<LiveRequest>(RequestNumber(next_request_++), std::move(resolved));
  live->arrived = place->since();
  live->place = std::move(place);
  if (request.deadline != absl::InfiniteFuture()) {
    live->deadline = options_.clock() + (request.deadline - options_.wall_clock());
  }
  options_.metrics->queue_tokens.Add(live->resolved.prompt_tokens());
  return live;
}

absl::StatusOr<RequestNumber> CoordinatorEngine::Generate(GenerateRequest request,
                                                          std::shared_ptr<GenerateSink> sink) {
  auto admitted = Admit(request);
  if (!admitted.ok()) {
    Refused(admitted.status());
    return admitted.status();
  }
  const RequestPtr live = *std::move(admitted);
  const ResolvedRequest& resolved = live->resolved;
  GenerateAccepted accepted;
  accepted.request_id = resolved.request_id;
  accepted.model = resolved.model;
  accepted.resolved_model = resolved.resolved_model;
  if (resolved.adapter) accepted.adapter = resolved.adapter->digest;
  accepted.seed = resolved.seed;
  accepted.prompt_tokens = static_cast<int32_t>(resolved.prompt_tokens());
  sink->OnAccepted(accepted);
  const RequestNumber number = live->number;
  const std::weak_ptr<LiveRequest> weak = live;  // which owns the sink
  live->sink = options_.text.open(
      {.n = request.n,
       .prompt_tokens = resolved.prompt,
       .stop = std::move(request.stop),
       .include_stop_in_output = request.include_stop_in_output,
       .skip_special_tokens = request.skip_special_tokens,
       .min_tokens = resolved.min_tokens,
       .prompt_logprobs = request.prompt_logprobs.has_value()},
      std::make_shared<CountedSink>(std::move(sink), request.n, options_.clock, options_.metrics),
      [weak, signal = router_->StopSignal(number)](int sample) {
        const RequestPtr r = weak.lock();
        if (!r) return;
        r->stopped[static_cast<size_t>(sample)] = true;
        signal();
      });
  {
    const std::lock_guard lock(live_mutex_);
    live_[number.value] = live;
  }
  options_.metrics->prompt_tokens.Observe(accepted.prompt_tokens);
  router_->Submit(live);
  return number;
}

void CoordinatorEngine::Refused(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  if (detail && detail->reason == Reason::kQueueFull) options_.metrics->Shed("queue_full");
  if (detail && detail->reason == Reason::kDraining) options_.metrics->Shed("draining");
  options_.metrics->Ended(status);
}

void CoordinatorEngine::OnAdmitted(LiveRequest& request) {
  LeaveQueue(request);
  ++running_;
  options_.metrics->running_requests.Add(1);
}

void CoordinatorEngine::LeaveQueue(LiveRequest& request) {
  request.place.reset();
  options_.metrics->queue_tokens.Add(-static_cast<double>(request.resolved.prompt_tokens()));
}

// On the thread that holds the request.
void CoordinatorEngine::Close(const RequestPtr& request, const absl::Status& status) {
  const EngineMetrics& metrics = *options_.metrics;
  metrics.Ended(status);
  metrics.e2e.Observe(absl::ToDoubleSeconds(options_.clock() - request->arrived));
  if (request->admitted) {
    --running_;
    metrics.running_requests.Add(-1);
  } else {
    LeaveQueue(*request);
  }
  if (absl::IsCancelled(status)) {
    metrics.Disconnected(!request->admitted      ? "queued"
                         : !request->tokens_seen ? "prefill"
                                                 : "decode");
  }
  request->sink->Close(status);
  const std::lock_guard lock(live_mutex_);
  live_.erase(request->number.value);
  live_changed_.notify_all();
}

void CoordinatorEngine::Cancel(RequestNumber request) { router_->Cancel(request); }

void CoordinatorEngine::Unload(const Digest& digest, UnloadDone done) {
  router_->Unload(digest, std::move(done));
}

absl::Status CoordinatorEngine::CheckPins(const std::vector<AdapterPin>& pins) const {
  const std::lock_guard lock(groups_mutex_);
  for (const auto& [name, record] : groups_) {
    if (!record.engine) continue;
    std::vector<AdapterHandle> here;
    for (const AdapterPin& pin : pins) {
      if (!pin.group.empty() && pin.group != name) continue;
      if (AdapterHandle content = options_.registry->FindDigest(pin.digest)) {
        here.push_back(std::move(content));
      }
    }
    RETURN_IF_ERROR(record.engine->CheckPins(here));
  }
  return absl::OkStatus();
}

void CoordinatorEngine::SetPins(std::vector<AdapterPin> pins) { router_->SetPins(std::move(pins)); }

EngineStatus CoordinatorEngine::Status() const {
  EngineStatus out;
  out.draining = draining_;
  out.queued = queue_->waiting();
  out.running = static_cast<uint32_t>(std::max<int64_t>(running_, 0));
  out.lora_sharding = options_.shape.sharding;
  const std::lock_guard lock(groups_mutex_);
  for (const auto& [name, record] : groups_) {
    if (IsForgotten(record)) continue;
    if (record.engine) {
      out.groups.push_back(record.engine->Snapshot());
    } else if (record.last) {
      out.groups.push_back(*record.last);
    } else {
      GroupStatus forming;
      forming.info = record.info;
      forming.state = "forming";
      forming.epoch = record.epoch;
      out.groups.push_back(std::move(forming));
    }
  }
  return out;
}

absl::Status CoordinatorEngine::Drain(absl::Time deadline) {
  draining_ = true;
  std::unique_lock lock(live_mutex_);
  while (!live_.empty()) {
    const absl::Duration left = deadline - options_.wall_clock();
    if (left <= absl::ZeroDuration()) {
      router_->DrainOut();
      return MakeError(absl::StatusCode::kDeadlineExceeded, Reason::kDeadlineExceeded, "drain", "",
                       absl::StrCat(live_.size(), " requests still ran and were ended"));
    }
    live_changed_.wait_for(lock,
                           absl::ToChronoMilliseconds(std::min(left, absl::Milliseconds(1000))));
  }
  return absl::OkStatus();
}

absl::Status CoordinatorEngine::DrainGroup(const std::string& group) {
  const std::lock_guard lock(groups_mutex_);
  const auto it = groups_.find(group);
  if (it == groups_.end() || !it->second.engine) {
    return MakeError(absl::StatusCode::kNotFound, Reason::kInvalidArgument, "group", group,
                     "no group of this name is attached");
  }
  router_->DrainGroup(it->second.epoch.attach);
  return absl::OkStatus();
}

}  // namespace rootstock
