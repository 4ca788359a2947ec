#include "coordinator/engine/group_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr absl::Duration kTick = absl::Seconds(1);
// A sequence in flight at two losses is replayed alone; at the third it is taken for the cause.
constexpr uint32_t kMaxDeaths = 2;

}  // namespace

// Turns the transport's calls into tasks. Outlives the engine: its queue then takes none.
class GroupEngine::Listener : public GroupListener {
 public:
  Listener(GroupEngine* engine, std::shared_ptr<TaskQueue> queue)
      : engine_(engine), queue_(std::move(queue)) {}
  void OnCompletion(Completion completion) override {
    queue_->Post(
        [e = engine_, c = std::move(completion)]() mutable { e->OnCompletion(std::move(c)); });
  }
  void OnLeaving() override {
    queue_->Post([e = engine_] { e->OnDrain(); });
  }
  void OnLost(const absl::Status& why) override {
    queue_->Post([e = engine_, why] { e->OnLost(why); });
  }

 private:
  GroupEngine* const engine_;
  const std::shared_ptr<TaskQueue> queue_;
};

GroupEngine::GroupEngine(GroupConfig config, std::shared_ptr<GroupLink> link,
                         std::shared_ptr<TaskQueue> queue, GroupCallbacks callbacks)
    : config_(std::move(config)),
      link_(std::move(link)),
      queue_(std::move(queue)),
      callbacks_(std::move(callbacks)),
      series_(config_.metrics->ForGroup(config_.info.name)),
      pages_(config_.report.geometry.num_pages),
      adapters_(pages_, [this](decltype(Command::kind) kind) { return Send(std::move(kind)); }),
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
  GroupEngine* raw = engine.get();
  engine->queue_->PostAt(engine->config_.clock() + kTick, [raw] { raw->OnTick(); });
  return engine;
}

GroupEngine::~GroupEngine() { queue_->Stop(); }

// Takes over what the group still holds; what is unknown or laid out otherwise is dropped.
absl::Status GroupEngine::AdoptResidents() {
  for (const ResidentAdapter& found : config_.report.adapters) {
    if (!pages_.Adopt(found.pages)) {
      return InvalidField(Reason::kGroupMismatch, "pages", found.digest.Short(),
                          "the group reports pages for it that do not exist or are taken");
    }
  }
  for (const ResidentAdapter& found : config_.report.adapters) {
    adapters_.Adopt(found);
    const AdapterHandle content = config_.find_digest(found.digest);
    if (!content) {
      adapters_.Discard(found.digest, /*from_disk=*/true);
      continue;
    }
    const auto footprint = config_.footprint(*content);
    if (!footprint.ok() || footprint->layout_id != found.layout_id ||
        footprint->pages != found.pages.size()) {
      adapters_.Discard(found.digest, /*from_disk=*/false);
      continue;
    }
    footprints_[found.digest] = *footprint;
  }
  return absl::OkStatus();
}

std::shared_ptr<GroupListener> GroupEngine::MakeListener() {
  return std::make_shared<Listener>(this, queue_);
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
  Post([this, why] { OnLost(why); });
}

GroupStatus GroupEngine::Snapshot() const {
  const std::lock_guard lock(status_mutex_);
  return status_;
}

// Refuses what can never fit here; cuts an open-ended answer to what does.
absl::Status GroupEngine::FitRequest(LiveRequest& request,
                                     const AdapterFootprint& footprint) const {
  ResolvedRequest& r = request.resolved;
  const PageGeometry& geometry = config_.report.geometry;
  const uint32_t usable = geometry.num_pages - 1;
  const absl::Status fits =
      CheckFits(r.max_positions(), geometry.page_tokens, footprint.pages, usable);
  if (fits.ok() || r.max_tokens_asked) return fits;
  RETURN_IF_ERROR(CheckFits(r.prompt_tokens(), geometry.page_tokens, footprint.pages, usable));
  uint32_t most = (usable - footprint.pages) * geometry.page_tokens + 1 - r.prompt_tokens();
  for (const Sequence& s : request.sequences) {
    if (!s.finished) most = std::max(most, static_cast<uint32_t>(s.outputs.size()) + 1);
  }
  if (most < r.min_tokens) return fits;
  r.max_tokens = std::min(r.max_tokens, most);
  return CheckFits(r.max_positions(), geometry.page_tokens, footprint.pages, usable);
}

void GroupEngine::OnSubmit(RequestPtr request) {
  if (lost_) return;  // the router takes it back when it hears of the loss
  if (draining_) {
    callbacks_.returned({std::move(request)});
    return;
  }
  LiveRequest& r = *request;
  requests_[r.number.value] = request;
  if (r.abort != AbortCause::kNone) {
    CloseRequest(r, AbortStatus(r));
    return;
  }
  AdapterFootprint footprint;
  if (r.resolved.adapter) {
    const AdapterContent& content = *r.resolved.adapter;
    auto it = footprints_.find(content.digest);
    if (it == footprints_.end()) {
      const auto made = config_.footprint(content);
      if (!made.ok()) {
        CloseRequest(r, Annotate(made.status(), absl::StrCat("adapter '", r.resolved.model, "'")));
        return;
      }
      it = footprints_.emplace(content.digest, *made).first;
    }
    footprint = it->second;
    r.cold = !adapters_.IsResident(content.digest);
    config_.metrics->Looked(!r.cold                              ? AdapterLookup::kDeviceHit
                            : adapters_.IsOnDisk(content.digest) ? AdapterLookup::kDiskHit
                                                                 : AdapterLookup::kFetch);
  }
  if (const absl::Status fits = FitRequest(r, footprint); !fits.ok()) {
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
      (event.retired ? config_.metrics->evictions_retire : config_.metrics->evictions).Add();
      callbacks_.residency(event.digest, false);
      return;
    case GroupAdapters::Event::kFailed:
      // Only those that wait for it; the name stays usable and the next request tries again.
      for (const Order order : event.waiting) {
        const auto it = parked_.find(order);
        if (it == parked_.end()) continue;  // a sibling closed its request
        LiveRequest& request = *it->second->request;
        CloseRequest(request, Annotate(event.why, absl::StrCat("adapter '", request.resolved.model,
                                                               "' could not be loaded")));
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
  callbacks_.close(owned, status);
  callbacks_.ended(owned->number);
}

void GroupEngine::OnDrain() {
  if (lost_) return;
  draining_ = true;
  Pump();
}

// While draining: what does not run goes elsewhere; when nothing is left, so does the group.
void GroupEngine::GiveBackIdle() {
  std::vector<RequestPtr> idle;
  for (const auto& [number, request] : requests_) {
    const auto& all = request->sequences;
    if (std::none_of(all.begin(), all.end(),
                     [](const Sequence& s) { return s.running || s.rows_in_flight > 0; })) {
      idle.push_back(request);
    }
  }
  for (const RequestPtr& request : idle) Detach(*request);
  if (!idle.empty()) callbacks_.returned(std::move(idle));
  if (requests_.empty() && steps_.empty() && !left_) {
    left_ = true;
    link_->SendLeave();
  }
}

void GroupEngine::OnLost(const absl::Status& why) {
  if (lost_) return;
  lost_ = true;
  steps_.clear();
  std::vector<RequestPtr> all;
  for (const auto& [number, request] : requests_) all.push_back(request);
  std::sort(all.begin(), all.end(),
            [](const RequestPtr& a, const RequestPtr& b) { return a->number < b->number; });
  std::vector<RequestPtr> back;
  for (const RequestPtr& request : all) {
    bool hopeless = false;
    for (Sequence& s : request->sequences) {
      s.rows_in_flight = 0;
      s.samples_in_flight = 0;
      if (!s.running) continue;
      ++s.deaths;
      hopeless |= s.deaths > kMaxDeaths;
      config_.metrics->replays.Add();
      config_.metrics->replayed_tokens.Add(s.computed);
    }
    if (hopeless) {
      LogError("request '", request->resolved.request_id, "', adapter ",
               request->resolved.adapter ? request->resolved.adapter->digest.Short() : "none",
               ": in flight at ", kMaxDeaths + 1, " losses of its group, the last one alone");
      CloseRequest(
          *request,
          MakeError(absl::StatusCode::kInternal, Reason::kWorkerLost, "group", config_.info.name,
                    absl::StrCat("was lost with this request in flight, for the third "
                                 "time: ",
                                 std::string(why.message()))));
    } else {
      back.push_back(Detach(*request));
    }
  }
  if (!back.empty()) callbacks_.returned(std::move(back));
  {
    const std::lock_guard lock(status_mutex_);
    status_.state = "broken";
  }
  callbacks_.gone(why);
}

// An idle group's heartbeat.
void GroupEngine::OnTick() {
  if (lost_) return;
  const absl::Time now = config_.clock();
  if (steps_.empty() && now - last_sent_ >= kTick && !left_) SendStep({}, {});
  queue_->PostAt(now + kTick, [this] { OnTick(); });
  Pump();
}

void GroupEngine::Publish() {
  const std::lock_guard lock(status_mutex_);
  if (draining_) status_.state = "draining";
  status_.pages_free = pages_.free_pages();
  status_.pages_kv = pages_.kv_pages();
  status_.pages_adapter = pages_.adapter_pages();
  if (published_changes_ != adapters_.residency_changes()) {
    published_changes_ = adapters_.residency_changes();
    status_.adapters = adapters_.Residents();
    series_.residents.Set(static_cast<double>(status_.adapters.size()));
    double bytes = 0;
    for (const ResidentAdapter& a : status_.adapters) {
      bytes += static_cast<double>(a.pages.size()) * config_.report.geometry.page_bytes;
    }
    series_.resident_bytes.Set(bytes);
  }
  series_.pages_kv.Set(status_.pages_kv);
  series_.pages_adapter.Set(status_.pages_adapter);
  series_.pages_free.Set(status_.pages_free);
}

}  // namespace rootstock
