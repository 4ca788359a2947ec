#include "coordinator/engine/group_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace rootstock {

namespace {

// The name was bound to content that we hold: where it can't be had, its code is ours and not that
// of the fetch, which would tell the client of an unknown model or of its own cancel.
absl::Status LoadFailure(const std::string& model, const absl::Status& why) {
  const bool may_pass = absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why) ||
                        absl::IsCancelled(why) || absl::IsResourceExhausted(why);
  const bool lost = absl::IsNotFound(why) || absl::IsDataLoss(why);
  const auto detail = GetErrorDetail(why);
  return MakeError(may_pass ? absl::StatusCode::kUnavailable
                   : lost   ? absl::StatusCode::kDataLoss
                            : absl::StatusCode::kInternal,
                   detail ? detail->reason : Reason::kIoError, "adapter", model,
                   absl::StrCat("could not be loaded: ", std::string(why.message())));
}

}  // namespace

// Turns the transport's calls into tasks. Outlives the engine: its queue then takes none.
class GroupEngine::Listener : public GroupListener {
 public:
  Listener(GroupEngine* engine, std::shared_ptr<TaskQueue> queue, Clock clock,
           std::shared_ptr<StreamEnd> end)
      : engine_(engine), queue_(std::move(queue)), clock_(std::move(clock)), end_(std::move(end)) {}
  void OnCompletion(Completion completion) override {
    queue_->Post(
        [e = engine_, c = std::move(completion)]() mutable { e->OnCompletion(std::move(c)); });
  }
  void OnLeaving() override {
    queue_->Post([e = engine_] { e->OnDrain(); });
  }
  void OnLost(const absl::Status& why) override {
    end_->Set(clock_());
    queue_->Post([e = engine_, why] { e->OnLost(why); });
  }

 private:
  GroupEngine* const engine_;
  const std::shared_ptr<TaskQueue> queue_;
  const Clock clock_;
  const std::shared_ptr<StreamEnd> end_;
};

GroupEngine::GroupEngine(GroupConfig config, std::shared_ptr<GroupLink> link,
                         std::shared_ptr<TaskQueue> queue, GroupCallbacks callbacks)
    : config_(std::move(config)),
      link_(std::move(link)),
      queue_(std::move(queue)),
      callbacks_(std::move(callbacks)),
      series_(config_.metrics->ForGroup(config_.info.name)),
      pages_(config_.report.geometry.num_pages),
      adapters_(
          pages_, [this](decltype(Command::kind) kind) { return Send(std::move(kind)); },
          config_.has_name),
      last_sent_(config_.clock()) {
  for (uint32_t i = config_.limits.max_num_seqs; i > 0; --i) {
    free_slots_.push_back(SequenceSlot(i - 1));
  }
  status_.info = config_.info;
  status_.state = "ready";
  status_.epoch = config_.report.epoch;
  status_.geometry = config_.report.geometry;
  status_.compute_dtype = config_.report.compute_dtype;
  series_.epoch.Set(static_cast<double>(config_.report.epoch.attach));
}

absl::StatusOr<std::unique_ptr<GroupEngine>> GroupEngine::Create(GroupConfig config,
                                                                 std::shared_ptr<GroupLink> link,
                                                                 std::shared_ptr<TaskQueue> queue,
                                                                 GroupCallbacks callbacks) {
  std::unique_ptr<GroupEngine> engine(
      new GroupEngine(std::move(config), std::move(link), std::move(queue), std::move(callbacks)));
  RETURN_IF_ERROR(engine->AdoptResidents());
  engine->Publish();
  engine->TickLater();
  return engine;
}

GroupEngine::~GroupEngine() { Stop(); }
void GroupEngine::Stop() { queue_->Stop(); }

// Takes over what the group still holds; what is unknown or laid out otherwise is dropped.
absl::Status GroupEngine::AdoptResidents() {
  for (const ResidentAdapter& found : config_.report.adapters) {
    if (!pages_.Adopt(found.pages)) {
      return InvalidField(Reason::kGroupMismatch, "pages", found.digest.Short(),
                          "the group reports pages for it that do not exist or are taken");
    }
  }
  for (const ResidentAdapter& found : config_.report.adapters) {
    const std::optional<AdapterFootprint> footprint = FootprintOf(found);
    adapters_.Adopt(found, footprint.value_or(AdapterFootprint{
                               found.layout_id, static_cast<uint32_t>(found.pages.size())}));
    const bool named = config_.find_digest(found.digest) && config_.has_name(found.digest);
    if (!named || !footprint) adapters_.Discard(found.digest, /*from_disk=*/!named);
  }
  return absl::OkStatus();
}

std::optional<AdapterFootprint> GroupEngine::FootprintOf(const ResidentAdapter& found) const {
  const AdapterHandle content = config_.find_digest(found.digest);
  if (!content) return std::nullopt;
  const auto ways = config_.ways(*content);
  if (!ways.ok()) return std::nullopt;
  for (AdapterFootprint way : ways->ways) {
    if (way.layout_id != found.layout_id || way.pages != found.pages.size()) continue;
    const uint32_t usable = config_.report.geometry.num_pages - 1;
    way.most_pages = std::max(way.pages, ChooseWay(*ways, usable, usable).most_pages);
    return way;
  }
  return std::nullopt;
}

std::shared_ptr<GroupListener> GroupEngine::MakeListener() {
  return std::make_shared<Listener>(this, queue_, config_.clock, stream_end_);
}

void GroupEngine::Post(std::function<void()> task) { queue_->Post(std::move(task)); }

void GroupEngine::Submit(RequestPtr request) {
  Post([this, r = std::move(request)]() mutable { OnSubmit(std::move(r)); });
}
void GroupEngine::Poke(RequestNumber request) {
  Post([this, request] { OnPoke(request); });
}
void GroupEngine::DropAdapter(const Digest& digest) {
  Post([this, digest] {
    if (lost_) return;
    adapters_.Doom(digest);
    Pump();
  });
}
void GroupEngine::Drain() {
  Post([this] { OnDrain(); });
}
void GroupEngine::Lose(const absl::Status& why) {
  stream_end_->Set(config_.clock());
  Post([this, why] { OnLost(why); });
}

GroupStatus GroupEngine::Snapshot() const {
  const std::lock_guard lock(status_mutex_);
  return status_;
}

// Refuses what can never fit here; cuts an open-ended answer to what does.
absl::Status GroupEngine::FitRequest(LiveRequest& request) const {
  ResolvedRequest& r = request.resolved;
  const uint32_t adapter = std::max(request.footprint.pages, request.footprint.most_pages);
  const PageGeometry& geometry = config_.report.geometry;
  const uint32_t usable = geometry.num_pages - 1;
  const absl::Status fits = CheckFits(r.max_positions(), geometry.page_tokens, adapter, usable);
  if (fits.ok() || r.max_tokens_asked) return fits;
  RETURN_IF_ERROR(CheckFits(r.prompt_tokens(), geometry.page_tokens, adapter, usable));
  uint32_t most = (usable - adapter) * geometry.page_tokens + 1 - r.prompt_tokens();
  for (const Sequence& s : request.sequences) {
    if (!s.finished) most = std::max(most, static_cast<uint32_t>(s.outputs.size()) + 1);
  }
  if (most < r.min_tokens) return fits;
  r.max_tokens = std::min(r.max_tokens, most);
  return CheckFits(r.max_positions(), geometry.page_tokens, adapter, usable);
}

// Known while the adapter is about; chosen anew for one that is nowhere.
absl::StatusOr<AdapterFootprint> GroupEngine::FootprintOf(const LiveRequest& request) const {
  const AdapterContent& content = *request.resolved.adapter;
  if (const auto known = adapters_.FootprintOf(content.digest)) return *known;
  ASSIGN_OR_RETURN(const AdapterWays ways, config_.ways(content));
  return ChooseWay(ways, config_.report.geometry.num_pages - 1, pages_.free_pages());
}

void GroupEngine::OnSubmit(RequestPtr request) {
  if (lost_) return;  // the router takes it back when it hears of the loss
  if (draining_) {
    GiveBack({std::move(request)});
    return;
  }
  LiveRequest& r = *request;
  requests_[r.number.value] = request;
  if (r.abort != AbortCause::kNone) {
    CloseRequest(r, AbortStatus(r));
    return;
  }
  if (r.resolved.adapter) {
    const auto footprint = FootprintOf(r);
    if (!footprint.ok()) {
      CloseRequest(r,
                   Annotate(footprint.status(), absl::StrCat("adapter '", r.resolved.model, "'")));
      return;
    }
    r.footprint = *footprint;
    const Digest& digest = r.resolved.adapter->digest;
    r.cold = !adapters_.IsResident(digest);
    config_.metrics->Looked(!r.cold                      ? AdapterLookup::kDeviceHit
                            : adapters_.IsOnDisk(digest) ? AdapterLookup::kDiskHit
                                                         : AdapterLookup::kFetch);
  }
  if (const absl::Status fits = FitRequest(r); !fits.ok()) {
    CloseRequest(r, fits);
    return;
  }
  adapters_.set_tag(static_cast<uint64_t>(absl::ToUnixMicros(config_.clock())));
  for (Sequence& s : r.sequences) {
    if (!s.finished) Enqueue(s);
  }
  OnPoke(r.number);
}

void GroupEngine::OnPoke(RequestNumber number) {
  const auto it = requests_.find(number.value);
  if (it != requests_.end()) {
    const RequestPtr request = it->second;
    if (request->abort != AbortCause::kNone) {
      CloseRequest(*request, AbortStatus(*request));
    } else {
      for (Sequence& s : request->sequences) {
        if (request->stopped[s.index]) FinishSequence(s);
      }
    }
  }
  Pump();
}

void GroupEngine::OnCompletion(Completion completion) {
  if (lost_) return;
  adapters_.set_tag(static_cast<uint64_t>(absl::ToUnixMicros(config_.clock())));
  const auto step = std::find_if(steps_.begin(), steps_.end(),
                                 [&](const SentStep& s) { return s.id == completion.id; });
  if (step != steps_.end()) {
    SentStep done = std::move(*step);
    steps_.erase(step);
    step_since_ = config_.clock();
    StepDone(std::move(done), std::move(completion));
  } else {
    OnAdapterEvent(adapters_.Completed(completion.id, completion.outcome));
  }
  Pump();
}

void GroupEngine::OnAdapterEvent(const GroupAdapters::Event& event) {
  if (event.was_load) {
    config_.metrics->Loaded(
        event.from_disk, event.why,
        config_.clock() - absl::FromUnixMicros(static_cast<int64_t>(event.started)));
  }
  switch (event.kind) {
    case GroupAdapters::Event::kNothing:
      return;
    case GroupAdapters::Event::kArrived:
      callbacks_.residency(event.digest, true);
      for (const Order order : event.waiting) {
        if (auto node = parked_.extract(order); !node.empty()) ready_.insert(std::move(node));
      }
      return;
    case GroupAdapters::Event::kLeft:
      (event.evicted ? config_.metrics->evictions : config_.metrics->evictions_retire).Add();
      (event.evicted ? config_.metrics->adapter_pages_pressure
                     : config_.metrics->adapter_pages_unload)
          .Add(event.pages);
      callbacks_.residency(event.digest, false);
      return;
    case GroupAdapters::Event::kFailed:
      // Only those that wait for it; the name stays usable and the next request tries again.
      for (const Order order : event.waiting) {
        const auto it = parked_.find(order);
        if (it == parked_.end()) continue;  // a sibling closed its request
        LiveRequest& request = *it->second->request;
        CloseRequest(request, LoadFailure(request.resolved.model, event.why));
      }
      return;
  }
}

// Takes all that the request holds here.
RequestPtr GroupEngine::Detach(LiveRequest& request) {
  for (Sequence& s : request.sequences) {
    if (s.running) {
      StopRunning(s);
    } else if (!s.finished) {
      Unqueue(s);
    }
  }
  ReleasePrompt(request);
  auto node = requests_.extract(request.number.value);
  return std::move(node.mapped());
}

void GroupEngine::CloseRequest(LiveRequest& request, const absl::Status& status) {
  const RequestPtr owned = Detach(request);
  for (Sequence& s : owned->sequences) s.finished = true;
  owned->closed = true;
  owned->freeing = absl::IsCancelled(status) && owned->admitted;
  ObserveCancel(*owned);
  callbacks_.close(owned, status);
  callbacks_.ended(owned->number);
}

void GroupEngine::ObserveCancel(LiveRequest& request) {
  if (!request.freeing || request.rows_in_flight()) return;
  request.freeing = false;
  config_.metrics->cancel_latency.Observe(
      absl::ToDoubleSeconds(config_.clock() - request.aborted_at));
}

}  // namespace rootstock
