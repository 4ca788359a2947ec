// Who is in the next step: the view that the scheduler decides from.
#include <algorithm>

#include "coordinator/engine/group_engine.h"

namespace rootstock {
namespace {

constexpr size_t kWaitingWindow = 128;
// Of the sequences that may run at once, those that wait for a Load set aside at most one in so
// many: a burst for one adapter leaves slots to who comes later and need not wait.
constexpr uint32_t kBarredShare = 2;

}  // namespace

// A load that can begin does not wait for the next Step: what rows would take before it is set
// aside for them.
void GroupEngine::ReserveLoads() {
  if (lost_ || steps_.size() < kMaxUncompleted || adapters_.num_fetched() == 0) return;
  Decision decision = Schedule(MakeView([](const Sequence&) { return true; }));
  if (!decision.preempt.empty()) return;
  decision.rows.clear();
  Apply(decision);
  UnparkUsable();
  Publish();
}

SchedulerView GroupEngine::MakeView(const std::function<bool(const Sequence&)>& may_run) {
  SchedulerView view;
  view.limits = {.max_num_seqs = config_.limits.max_num_seqs,
                 .max_decode_rows = config_.pool.max_decode_rows,
                 .max_num_batched_tokens = config_.limits.max_num_batched_tokens,
                 .page_tokens = config_.report.geometry.page_tokens};
  view.floors = floors_;
  view.usable_pages = usable();
  view.adapter_pages = pages_.adapter_pages();
  view.free_pages = pages_.free_pages();
  view.free_for_loads = pages_.free_for_loads();
  view.free_slots = static_cast<uint32_t>(free_slots_.size());
  view.decode_turn = decode_turn_;
  adapters_.FillView(view);
  view_running_ = running_;
  for (const Sequence* s : view_running_) {
    uint32_t freeable = 0;
    for (const PageId page : s->pages) freeable += pages_.references(page) == 1;
    const bool more = s->wants_rows();
    view.running.push_back({.order = s->order(),
                            .length = more ? s->length() : s->computed,
                            .computed = s->computed,
                            .pages = static_cast<uint32_t>(s->pages.size()),
                            .freeable = freeable,
                            .preemptible = more,
                            .token_bytes = s->prompt_token_bytes(),
                            .solo = s->deaths >= 2,
                            .barred = !may_run(*s)});
  }
  view_waiting_.clear();
  uint32_t barred_left = std::max(1u, config_.limits.max_num_seqs / kBarredShare);
  const LiveRequest* first_of = nullptr;  // its first sample starts alone in this view
  for (auto it = ready_.begin(); it != ready_.end() && view_waiting_.size() < kWaitingWindow;) {
    Sequence* s = it->second;
    const LiveRequest& request = *s->request;
    const bool barred = !may_run(*s);
    if (first_of == &request || !MayStart(*s) || (barred && barred_left == 0)) {
      ++it;
      continue;
    }
    barred_left -= barred ? 1 : 0;
    if (request.shares_prompt() && request.prompt_pages.empty() &&
        request.resolved.prompt_tokens() > config_.report.geometry.page_tokens) {
      first_of = &request;
    }
    view_waiting_.push_back(s);
    view.waiting.push_back({.order = s->order(),
                            .length = s->length(),
                            .max_length = request.resolved.max_positions(),
                            .shared_pages = static_cast<uint32_t>(request.prompt_pages.size()),
                            .token_bytes = s->prompt_token_bytes(),
                            .solo = s->deaths >= 2,
                            .barred = barred});
    ++it;
  }
  return view;
}

// A Load that fails takes with it the Steps that follow it, and those sent behind them that name
// the same sequences. So whoever follows a Load has Steps to itself, and a bad adapter hurts nobody
// else. Such a Step also waits for the copy and runs without graphs: the others, whom all that
// would hold up, go first while they have rows, and who waits for a Load then waits until it has
// completed. Several Loads take turns.
Decision GroupEngine::ScheduleApart() {
  const std::vector<Digest>& followed = adapters_.followed();
  const auto follows = [&](const Sequence& s, const Digest* load) {
    const AdapterHandle& adapter = s.request->resolved.adapter;
    if (load != nullptr) return adapter && adapter->digest == *load;
    return adapter && adapters_.IsLoading(adapter->digest);
  };
  Decision decision = Schedule(MakeView([&](const Sequence& s) { return !follows(s, nullptr); }));
  const auto last = std::find(followed.begin(), followed.end(), last_followed_);
  const auto first = static_cast<size_t>(last - followed.begin()) + (last != followed.end());
  for (size_t i = 0; i < followed.size(); ++i) {
    if (!decision.rows.empty() || !decision.preempt.empty()) break;
    const Digest& turn = followed[(first + i) % followed.size()];
    decision = Schedule(MakeView([&](const Sequence& s) { return follows(s, &turn); }));
  }
  return decision;
}

Decision GroupEngine::Decide() {
  std::vector<LiveRequest*> requests(keeping_prompts_.begin(), keeping_prompts_.end());
  for (LiveRequest* request : requests) {
    const auto& all = request->sequences;
    if (std::none_of(all.begin(), all.end(),
                     [](const Sequence& s) { return !s.running && !s.finished; })) {
      ReleasePrompt(*request);
    }
  }
  requests.clear();
  for (const Sequence* s : running_) {
    if (s->prompt_confirmed && s->request->shares_prompt()) requests.push_back(s->request);
  }
  for (LiveRequest* request : requests) KeepPrompt(*request);
  Decision decision = ScheduleApart();
  const bool pressed = !decision.preempt.empty() || decision.evict.size() > decision.evict_ahead ||
                       (decision.rows.empty() && !ready_.empty());
  if (!pressed || keeping_prompts_.empty()) return decision;
  // Kept prompt pages only save work: they go before anybody else gives up something.
  const uint32_t before = pages_.kv_pages();
  while (!keeping_prompts_.empty()) ReleasePrompt(**keeping_prompts_.begin());
  config_.metrics->kv_pages_pressure.Add(before - pages_.kv_pages());
  return ScheduleApart();
}

}  // namespace rootstock
