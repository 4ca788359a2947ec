#include "coordinator/scheduler/scheduler.h"

#include <algorithm>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

class Planner {
 public:
  explicit Planner(const SchedulerView& view)
      : view_(view),
        clean_(view.free_for_loads),
        dirty_(view.free_pages - view.free_for_loads),
        coming_(view.pages_coming),
        adapter_pages_(view.adapter_pages - std::min(view.adapter_pages, view.pages_coming)),
        oldest_(Oldest(view)),
        result_bytes_(view.limits.max_result_bytes),
        preempted_(view.running.size()),
        granted_(view.running.size()),
        barred_(view.running.size()),
        evicted_(view.idle_adapters.size()),
        unreserved_(view.loads.size()),
        reserved_(view.loads.size()) {}

  Decision Run() {
    TakeTurns();
    SplitBudget();
    for (size_t i = 0; i < view_.running.size(); ++i) {
      ServeLoadsBefore(view_.running[i].order);
      if (!preempted_[i]) GrowRunning(i);
    }
    EmitRunningRows();
    Admit();
    ServeLoadsBefore(kNobody);
    EvictAhead();
    for (size_t i = 0; i < reserved_.size(); ++i) {
      if (reserved_[i] > 0) {
        decision_.reserve.push_back({static_cast<uint32_t>(i), reserved_[i]});
      }
    }
    return std::move(decision_);
  }

 private:
  struct Grant {
    uint32_t query_len = 0;
    uint32_t new_pages = 0;
  };

  static Order Oldest(const SchedulerView& view) {
    Order oldest = kNobody;
    if (!view.running.empty()) oldest = std::min(oldest, view.running.front().order);
    if (!view.waiting.empty()) oldest = std::min(oldest, view.waiting.front().order);
    if (!view.loads.empty()) oldest = std::min(oldest, view.loads.front().order);
    return oldest;
  }
  // Whether adapters may come down to, or up to, so many pages for `order`'s sake.
  bool KvMayTake(Order order, uint32_t pages) const {
    return order == oldest_ || adapter_pages_ >= view_.floors.adapters + pages;
  }
  bool LoadMayTake(Order order, uint32_t pages) const {
    return order == oldest_ || adapter_pages_ + pages + view_.floors.kv <= view_.usable_pages;
  }

  uint32_t free() const { return clean_ + dirty_; }
  void TakeForStep(uint32_t n) {
    const uint32_t from_dirty = std::min(n, dirty_);
    dirty_ -= from_dirty;
    clean_ -= n - from_dirty;
  }
  static uint32_t Remaining(const RunningView& r) { return r.length - r.computed; }

  void TakeTurns() {
    std::vector<size_t> decodes;  // by order
    for (size_t i = 0; i < view_.running.size(); ++i) {
      barred_[i] = view_.running[i].barred;
      if (Remaining(view_.running[i]) == 1 && !barred_[i]) decodes.push_back(i);
    }
    decision_.decode_turn = view_.decode_turn;
    const size_t most = view_.limits.max_decode_rows;
    if (most == 0 || decodes.size() <= most) return;
    const auto order = [this](size_t i) { return view_.running[i].order; };
    const auto first = std::find_if(decodes.begin(), decodes.end(),
                                    [&](size_t i) { return order(i) > view_.decode_turn; });
    std::rotate(decodes.begin(), first, decodes.end());
    decision_.decode_turn = order(decodes[most - 1]);
    for (size_t i = most; i < decodes.size(); ++i) barred_[decodes[i]] = true;
  }

  // Decodes come first: prompts share what they leave of the step's tokens.
  void SplitBudget() {
    uint32_t decodes = 0;
    for (size_t i = 0; i < view_.running.size(); ++i) {
      decodes += Remaining(view_.running[i]) == 1 && !barred_[i];
    }
    decode_budget_ = std::min(decodes, view_.limits.max_num_batched_tokens);
    prefill_budget_ = view_.limits.max_num_batched_tokens - decode_budget_;
  }

  // 0: the row waits for a step with room.
  uint32_t CutToResult(uint32_t chunk, uint64_t token_bytes) const {
    if (token_bytes == 0) return chunk;
    const uint64_t room = std::max<uint64_t>(result_bytes_ / token_bytes, results_ ? 0 : 1);
    return static_cast<uint32_t>(std::min<uint64_t>(chunk, room));
  }
  void TakeResult(uint32_t chunk, uint64_t token_bytes) {
    result_bytes_ -= std::min(result_bytes_, chunk * token_bytes);
    results_ |= token_bytes > 0;
  }

  void GrowRunning(size_t i) {
    const RunningView& r = view_.running[i];
    const uint32_t remaining = Remaining(r);
    if (remaining == 0) return;
    uint32_t& budget = remaining == 1 ? decode_budget_ : prefill_budget_;
    const uint32_t chunk = barred_[i] ? std::min(remaining, view_.limits.max_num_batched_tokens)
                                      : CutToResult(std::min(remaining, budget), r.token_bytes);
    if (chunk == 0) return;
    const uint32_t page_tokens = view_.limits.page_tokens;
    const uint32_t wanted = PagesFor(r.computed + chunk, page_tokens);
    const uint32_t need = wanted > r.pages ? wanted - r.pages : 0;
    // For a row that is not sent nobody's work is thrown away.
    if (need > free()) MakeRoom(r.order, need, /*may_preempt=*/!barred_[i]);
    if (need > free()) {
      // Pages of dropped adapters are on their way: the sequence sits this step out. So does a
      // barred one, for which what there is is set aside.
      if (Claim(barred_[i] ? std::min(need, free() + coming_) : need)) return;
      // It is the youngest that holds pages (MakeRoom preempted all behind it): it makes way.
      if (r.preemptible && (i > 0 || OlderWaits(r.order))) Preempt(i);
      return;
    }
    TakeForStep(need);
    if (barred_[i]) return;
    TakeResult(chunk, r.token_bytes);
    budget -= chunk;
    granted_[i] = {chunk, need};
  }

  bool OlderWaits(Order order) const {
    if (!view_.waiting.empty() && view_.waiting.front().order < order) return true;
    for (size_t i = 0; i < view_.loads.size(); ++i) {
      if (view_.loads[i].order < order && view_.loads[i].missing > reserved_[i]) return true;
    }
    return false;
  }

  void Preempt(size_t i) {
    preempted_[i] = true;
    decision_.preempt.push_back(static_cast<uint32_t>(i));
    dirty_ += view_.running[i].freeable;
  }

  // Sets aside pages that are coming, so that nobody evicts more for the same need.
  bool Claim(uint32_t need) {
    const uint32_t lacking = need - std::min(need, free());
    if (coming_ < lacking) return false;
    coming_ -= lacking;
    TakeForStep(need - lacking);
    return true;
  }

  // Leaves need ≤ free, or need ≤ free + coming, if `order` can get there.
  void MakeRoom(Order order, uint32_t need, bool may_preempt) {
    for (size_t i = view_.loads.size(); i-- > 0 && need > free();) {
      if (view_.loads[i].order > order) TakeBack(i);
    }
    if (need <= free()) return;
    Evict(order,
          [&](uint32_t pages) { return need > free() + coming_ && KvMayTake(order, pages); });
    if (!may_preempt || need <= free() + coming_) return;
    for (size_t i = view_.running.size(); i-- > 0 && need > free() + coming_;) {
      const RunningView& r = view_.running[i];
      if (r.order <= order) break;
      if (!preempted_[i] && r.preemptible && r.freeable > 0) Preempt(i);
    }
  }

  void TakeBack(size_t load) {
    clean_ += reserved_[load];
    reserved_[load] = 0;
    if (unreserved_[load] || view_.loads[load].reserved == 0) return;
    unreserved_[load] = true;
    clean_ += view_.loads[load].reserved;
    adapter_pages_ -= view_.loads[load].reserved;
    decision_.unreserve.push_back(static_cast<uint32_t>(load));
  }

  // more(pages): whether one more, of so many pages, is to go.
  void Evict(Order order, const std::function<bool(uint32_t)>& more) {
    // Those that nobody waits for go first.
    for (const bool wanted : {false, true}) {
      for (size_t i = 0; i < view_.idle_adapters.size(); ++i) {
        const IdleAdapterView& a = view_.idle_adapters[i];
        if (!more(a.pages)) return;
        if (evicted_[i] || (a.wanted_by != kNobody) != wanted || a.wanted_by <= order) continue;
        evicted_[i] = true;
        evicted_wanted_ |= wanted;
        coming_ += a.pages;
        adapter_pages_ -= std::min(adapter_pages_, a.pages);
        decision_.evict.push_back(static_cast<uint32_t>(i));
      }
    }
  }

  void EvictAhead() {
    const size_t needed = decision_.evict.size();
    constexpr Order kLast = kNobody - 1;  // whoever waits for one is before
    Evict(kLast, [&](uint32_t pages) {
      return free() + coming_ < view_.spare_pages &&
             adapter_pages_ >= view_.floors.adapters + pages;
    });
    decision_.evict_ahead = static_cast<uint32_t>(decision_.evict.size() - needed);
  }

  uint32_t EvictableFor(Order order) const {
    uint32_t pages = 0;
    for (size_t i = 0; i < view_.idle_adapters.size(); ++i) {
      const IdleAdapterView& a = view_.idle_adapters[i];
      if (!evicted_[i] && a.wanted_by > order) pages += a.pages;
    }
    return pages;
  }

  uint32_t ReservedAfter(Order order) const {
    uint32_t pages = 0;
    for (size_t i = 0; i < view_.loads.size(); ++i) {
      if (view_.loads[i].order <= order) continue;
      pages += reserved_[i] + (unreserved_[i] ? 0 : view_.loads[i].reserved);
    }
    return pages;
  }

  void ServeLoadsBefore(Order order) {
    for (; next_load_ < view_.loads.size(); ++next_load_) {
      const LoadView& load = view_.loads[next_load_];
      if (load.order >= order) return;
      if (unreserved_[next_load_]) continue;
      if (load.missing > clean_) {
        // A load waits for pages as they come free and preempts nobody.
        for (size_t i = view_.loads.size(); i-- > next_load_ + 1 && load.missing > clean_;) {
          if (view_.loads[i].order > load.order) TakeBack(i);
        }
      }
      // KV's floor holds it up until adapters in use, or wanted by older ones, become idle.
      const uint32_t evictable = EvictableFor(load.order);
      if (!LoadMayTake(load.order, load.missing - std::min(load.missing, evictable))) continue;
      Evict(load.order, [&](uint32_t) {
        return load.missing > free() + coming_ || !LoadMayTake(load.order, load.missing);
      });
      const uint32_t now = std::min(load.missing, clean_);
      clean_ -= now;
      reserved_[next_load_] = now;
      adapter_pages_ += load.missing;
      coming_ -= std::min(coming_, load.missing - now);
    }
  }

  void EmitRunningRows() {
    for (const bool decode : {true, false}) {
      for (size_t i = 0; i < view_.running.size(); ++i) {
        const Grant& grant = granted_[i];
        if (preempted_[i] || grant.query_len == 0) continue;
        if ((Remaining(view_.running[i]) == 1) != decode) continue;
        decision_.rows.push_back(
            {false, static_cast<uint32_t>(i), grant.query_len, grant.new_pages});
      }
    }
  }

  void Admit() {
    uint32_t running = 0, solo = 0;
    for (size_t i = 0; i < view_.running.size(); ++i) {
      if (preempted_[i]) continue;
      ++running;
      solo += view_.running[i].solo;
    }
    // What was preempted just now comes back when there is room, not in the same step.
    if (solo > 0 || !decision_.preempt.empty()) return;
    uint32_t slots = std::min(view_.free_slots, view_.limits.max_new_sequences);
    if (running >= view_.limits.max_num_seqs) return;
    slots = std::min(slots, view_.limits.max_num_seqs - running);
    for (size_t i = 0; i < view_.waiting.size() && slots > 0 && prefill_budget_ > 0; ++i) {
      const WaitingView& w = view_.waiting[i];
      ServeLoadsBefore(w.order);
      // Its adapter may be among those that just lost their place.
      if (evicted_wanted_) return;
      if (w.solo && running > 0) return;
      if (!AdmitOne(i, running)) return;
      ++running;
      --slots;
      if (w.solo) return;
    }
  }

  bool AdmitOne(size_t i, uint32_t running) {
    const WaitingView& w = view_.waiting[i];
    const uint32_t page_tokens = view_.limits.page_tokens;
    const uint32_t chunk = CutToResult(
        std::min(w.length - w.shared_pages * page_tokens, prefill_budget_), w.token_bytes);
    if (chunk == 0 && !w.barred) return false;
    const uint32_t pages = PagesFor(w.length, page_tokens) - w.shared_pages;
    // Room for the first token as well, else it would be preempted for the next step's page.
    const uint32_t roomy =
        PagesFor(std::min(w.length + 1, w.max_length), page_tokens) - w.shared_pages;
    // The next page of each that runs would else soon be taken from the youngest, with its work.
    const bool tight =
        w.order != oldest_ && running > 0 &&
        roomy + running > free() + coming_ + EvictableFor(kNobody - 1) + ReservedAfter(w.order);
    if (roomy > free() && !tight) MakeRoom(w.order, roomy, /*may_preempt=*/false);
    if (roomy > free() || tight) {
      Claim(std::min(roomy, free() + coming_));
      return false;
    }
    TakeForStep(pages);
    if (w.barred) return true;
    TakeResult(chunk, w.token_bytes);
    prefill_budget_ -= chunk;
    decision_.rows.push_back({true, static_cast<uint32_t>(i), chunk, pages});
    return true;
  }

  const SchedulerView& view_;
  uint32_t clean_, dirty_, coming_;
  uint32_t adapter_pages_;  // those that leave not counted
  const Order oldest_;
  uint64_t result_bytes_;  // left for prompt logprobs
  bool results_ = false;   // some are in the step
  std::vector<bool> preempted_;
  std::vector<Grant> granted_;
  std::vector<bool> barred_;  // by the view, or it sits this step out
  std::vector<bool> evicted_, unreserved_;
  std::vector<uint32_t> reserved_;
  uint32_t decode_budget_ = 0, prefill_budget_ = 0;
  size_t next_load_ = 0;
  bool evicted_wanted_ = false;
  Decision decision_;
};

}  // namespace

Decision Schedule(const SchedulerView& view) { return Planner(view).Run(); }

absl::Status CheckFits(uint32_t positions, uint32_t page_tokens, uint32_t adapter_pages,
                       uint32_t pages, uint32_t pinned) {
  const uint64_t kv = PagesFor(positions, page_tokens);
  if (kv + adapter_pages + pinned <= pages) return absl::OkStatus();
  const std::string pins = pinned == 0 ? "" : absl::StrCat(", ", pinned, " of them for pins");
  return InvalidField(Reason::kTooLarge, "pages", absl::StrCat(kv + adapter_pages),
                      absl::StrCat(positions, " tokens of ", page_tokens, " a page take ", kv,
                                   " pages, the adapter ", adapter_pages, "; the group has ", pages,
                                   pins, ": it can never fit, ask for fewer tokens"));
}

}  // namespace rootstock
