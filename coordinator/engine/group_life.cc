// A group's time from attach to its end: ticks, drain, loss, and what it shows of itself.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/engine/group_engine.h"

namespace rootstock {
namespace {

constexpr absl::Duration kTick = absl::Seconds(1);
// A sequence in flight at two losses is replayed alone; at the third it is taken for the cause.
constexpr uint32_t kMaxDeaths = 2;

}  // namespace

void GroupEngine::OnDrain() {
  if (lost_) return;
  if (!std::exchange(draining_, true)) callbacks_.draining();
  Pump();
}

void GroupEngine::GiveBack(std::vector<RequestPtr> requests) {
  if (requests.empty()) return;
  config_.metrics->Requeued(/*drained=*/!lost_, requests.size());
  callbacks_.returned(std::move(requests));
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
  GiveBack(std::move(idle));
  if (requests_.empty() && steps_.empty() && !left_) {
    left_ = true;
    stream_end_->drained = true;
    link_->SendLeave();
  }
}

void GroupEngine::OnLost(const absl::Status& why) {
  if (lost_) return;
  lost_ = true;
  for (const SentStep& step : steps_) {
    for (const SentRow& row : step.rows) row.sequence->rows_in_flight = 0;
    for (const SentRow& row : step.rows) ObserveCancel(*row.request);
  }
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
  GiveBack(std::move(back));
  {
    // Nothing is known of its pages until it attaches again.
    const std::lock_guard lock(status_mutex_);
    status_.state = left_ ? "drained" : "broken";
    status_.pages_free = status_.pages_kv = status_.pages_adapter = 0;
    residents_.clear();
    status_lost_ = true;
  }
  callbacks_.gone(why, left_);
}

void GroupEngine::TickLater() {
  queue_->PostAt(config_.clock() + kTick, [this] { OnTick(); });
}

// An idle group's heartbeat; a group that stopped answering is lost.
void GroupEngine::OnTick() {
  if (lost_) return;
  const absl::Time now = config_.clock();
  if (!steps_.empty() && now - step_since_ >= config_.step_timeout) {
    const absl::Status why = MakeError(
        absl::StatusCode::kUnavailable, Reason::kWorkerLost, "step",
        absl::StrCat(steps_.front().id.value),
        absl::StrCat("not completed within ", absl::FormatDuration(config_.step_timeout)));
    stream_end_->Set(now);
    link_->Close(why);
    OnLost(why);
    return;
  }
  if (steps_.empty() && now - last_sent_ >= kTick && !left_) SendStep({}, {});
  for (const Digest& digest : adapters_.Tick()) callbacks_.slow(digest);
  TickLater();
  Pump();
}

void GroupEngine::Publish() {
  const std::lock_guard lock(status_mutex_);
  if (draining_) status_.state = "draining";
  status_.pages_free = pages_.free_pages();
  status_.pages_kv = pages_.kv_pages();
  status_.pages_adapter = pages_.adapter_pages();
  for (GroupAdapters::Change& change : adapters_.TakeChanges()) {
    if (change.here) {
      residents_[change.adapter.digest] = std::move(change.adapter);
    } else {
      residents_.erase(change.adapter.digest);
    }
  }
  if (stream_end_->over) return;  // the series are those of the group's next attach
  const double page_bytes = config_.report.geometry.page_bytes;
  series_.On(Tier::kDevice, adapters_.num_residents(), adapters_.resident_pages() * page_bytes);
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    const NodeTiers::Totals totals = adapters_.nodes().Of(tier);
    series_.On(tier, totals.adapters, static_cast<double>(totals.bytes));
  }
  series_.pages_kv.Set(status_.pages_kv);
  series_.pages_adapter.Set(status_.pages_adapter);
  series_.pages_free.Set(status_.pages_free);
}

}  // namespace rootstock
