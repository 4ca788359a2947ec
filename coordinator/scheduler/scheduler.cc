#include "coordinator/scheduler/scheduler.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/scheduler/page_plan.h"

namespace rootstock {
namespace {

// Rows, and their tokens; of pages PagePlan knows.
class Planner {
 public:
  explicit Planner(const SchedulerView& view)
      : view_(view),
        pages_(view, decision_),
        result_bytes_(view.limits.max_result_bytes),
        granted_(view.running.size()),
        barred_(view.running.size()) {}

  Decision Run() {
    TakeTurns();
    SplitBudget();
    for (size_t i = 0; i < view_.running.size(); ++i) {
      pages_.ServeLoadsBefore(view_.running[i].order);
      if (!pages_.preempted(i)) GrowRunning(i);
    }
    EmitRunningRows();
    Admit();
    pages_.ServeLoadsBefore(kNobody);
    pages_.EvictAhead();
    pages_.Finish();
    return std::move(decision_);
  }

 private:
  struct Grant {
    uint32_t query_len = 0;
    uint32_t new_pages = 0;
  };

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
    if (need > pages_.free()) pages_.MakeRoom(r.order, need, /*may_preempt=*/!barred_[i]);
    if (need > pages_.free()) {
      // Pages of dropped adapters are on their way: the sequence sits this step out. So does a
      // barred one, for which what there is is set aside.
      if (barred_[i]) {
        pages_.ClaimUpTo(need);
      } else if (!pages_.Claim(need)) {
        pages_.GiveWay(i);  // MakeRoom preempted all behind it
      }
      return;
    }
    pages_.TakeForStep(need);
    if (barred_[i]) return;
    TakeResult(chunk, r.token_bytes);
    budget -= chunk;
    granted_[i] = {chunk, need};
  }

  void EmitRunningRows() {
    for (const bool decode : {true, false}) {
      for (size_t i = 0; i < view_.running.size(); ++i) {
        const Grant& grant = granted_[i];
        if (pages_.preempted(i) || grant.query_len == 0) continue;
        if ((Remaining(view_.running[i]) == 1) != decode) continue;
        decision_.rows.push_back(
            {false, static_cast<uint32_t>(i), grant.query_len, grant.new_pages});
      }
    }
  }

  void Admit() {
    uint32_t running = 0, solo = 0;
    for (size_t i = 0; i < view_.running.size(); ++i) {
      if (pages_.preempted(i)) continue;
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
      pages_.ServeLoadsBefore(w.order);
      // Its adapter may be among those that just lost their place.
      if (pages_.evicted_wanted()) return;
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
    const bool tight = pages_.Tight(w.order, roomy, running);
    if (roomy > pages_.free() && !tight) pages_.MakeRoom(w.order, roomy, /*may_preempt=*/false);
    if (roomy > pages_.free() || tight) {
      pages_.ClaimUpTo(roomy);
      return false;
    }
    pages_.TakeForStep(pages);
    if (w.barred) return true;
    TakeResult(chunk, w.token_bytes);
    prefill_budget_ -= chunk;
    decision_.rows.push_back({true, static_cast<uint32_t>(i), chunk, pages});
    return true;
  }

  const SchedulerView& view_;
  Decision decision_;
  PagePlan pages_;
  uint64_t result_bytes_;  // left for prompt logprobs
  bool results_ = false;   // some are in the step
  std::vector<Grant> granted_;
  std::vector<bool> barred_;  // by the view, or it sits this step out
  uint32_t decode_budget_ = 0, prefill_budget_ = 0;
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
