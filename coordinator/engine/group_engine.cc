#include "coordinator/engine/group_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace rootstock {

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
      floors_(FloorsOf(config_)),
      pages_(config_.report.geometry.num_pages),
      adapters_(pages_, MakePort()),
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

AdapterPort GroupEngine::MakePort() {
  const AttachReport& report = config_.report;
  return {.send = [this](decltype(Command::kind) kind) { return Send(std::move(kind)); },
          .has_name = config_.has_name,
          .clock = config_.clock,
          .busy = [this] { return !running_.empty(); },
          .eviction = config_.pool.eviction,
          .prefetch_bytes = config_.pool.prefetch_bytes,
          .page_bytes = uint64_t{report.geometry.page_bytes} * config_.info.tp_size,
          .loads_by_layer = report.loads_by_layer};
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
void GroupEngine::Unload(const Digest& digest, UnloadDone done) {
  Post([this, digest, d = std::move(done)]() mutable {
    if (lost_) return;
    adapters_.Unload(digest, std::move(d));
    Pump();
  });
}
void GroupEngine::SetPins(std::vector<AdapterHandle> pins) {
  Post([this, p = std::move(pins)] { OnPins(p); });
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
  GroupStatus out = status_;
  for (const auto& [digest, adapter] : residents_) out.adapters.push_back(adapter);
  if (!status_lost_) out.cached = adapters_.nodes().List();
  return out;
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
  last_order_ = std::max(last_order_, r.sequences.back().order());
  if (const absl::Status received = Receive(r); !received.ok()) {
    CloseRequest(r, received);
    return;
  }
  for (Sequence& s : r.sequences) {
    if (!s.finished) Enqueue(s);
  }
  OnPoke(r.number);
  ReserveLoads();
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
  const GroupAdapters::NodeEvictions evicted = adapters_.Apply(completion.tier_changes);
  config_.metrics->Evicted(Tier::kHost, /*pressure=*/true, evicted.host);
  config_.metrics->Evicted(Tier::kHost, /*pressure=*/false, evicted.retired_host);
  config_.metrics->Evicted(Tier::kDisk, /*pressure=*/true, evicted.disk);
  config_.metrics->Evicted(Tier::kDisk, /*pressure=*/false, evicted.retired_disk);
  // Large attach reports go on here.
  for (const TierChange& change : completion.tier_changes) {
    if (change.present) NoteIfNameless(change.adapter.digest);
  }
  const auto step = std::find_if(steps_.begin(), steps_.end(),
                                 [&](const SentStep& s) { return s.id == completion.id; });
  if (step != steps_.end()) {
    SentStep done = std::move(*step);
    steps_.erase(step);
    step_since_ = config_.clock();
    StepDone(std::move(done), std::move(completion));
    DropNameless();
  } else {
    OnAdapterEvent(adapters_.Completed(completion));
    DropNameless();
    Pump();
    ReserveLoads();
    return;
  }
  Pump();
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
  ApplyPins();
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
