// What must hold while a RandomLife goes on, and at its end.
#include <algorithm>

#include "common/base/status.h"
#include "coordinator/engine/testing/random_life.h"

namespace rootstock {

// No page is lost or in two hands, as often as one may look.
void RandomLife::CheckPages() {
  for (const auto& [name, group] : world_.groups) {
    if (!group->attached()) continue;
    const GroupStatus s = world_.StatusOf(name);
    ASSERT_EQ(s.pages_free + s.pages_kv + s.pages_adapter, group->geometry.num_pages - 1) << name;
    std::set<uint32_t> pages;
    size_t held = 0;
    for (const ResidentAdapter& a : s.adapters) {
      held += a.pages.size();
      for (const PageId page : a.pages) pages.insert(page.value);
    }
    ASSERT_EQ(pages.size(), held) << name << ": a page of two adapters";
    ASSERT_LE(held, s.pages_adapter) << name;
    ASSERT_TRUE(group->violations.empty()) << name << ": " << group->violations.front();
  }
}

void RandomLife::FinishAndCheck() {
  for (auto& [name, group] : world_.groups) {
    if (!group->attached()) {
      EXPECT_TRUE(group->Attach(*world_.engine).ok());
    }
  }
  world_.Settle();
  for (const Asked& a : asked_) Check(a);
  world_.ExpectClean();
  ExpectAllFreed();
  const EngineStatus status = world_.engine->Status();
  EXPECT_EQ(status.queued, 0u);
  EXPECT_EQ(status.running, 0u);
}

// Pages are back to base, on the nodes' tiers too, once all is unloaded.
void RandomLife::ExpectAllFreed() {
  world_.engine->SetPins({});
  for (const Digest& digest : contents_) UnloadNow(digest);
  world_.Settle();
  world_.executor.Advance(absl::Seconds(1));  // what ended requests held leaves at a tick
  world_.Settle();
  EXPECT_EQ(unloaded_, unloads_);
  for (const auto& [name, group] : world_.groups) {
    EXPECT_EQ(world_.StatusOf(name).pages_adapter, 0u);
    EXPECT_EQ(world_.StatusOf(name).pages_free, group->geometry.num_pages - 1);
    EXPECT_TRUE(group->residents().empty());
    EXPECT_TRUE(group->pinned().empty());
    EXPECT_EQ(world_.StatusOf(name).cached.size(),
              group->fetched().size() + group->on_host().size());
  }
  world_.ExpectClean();
}

void RandomLife::Check(const Asked& a) {
  const Heard& heard = *a.sent.heard;
  ASSERT_TRUE(heard.done) << heard.accepted.request_id << " of " << heard.accepted.model;
  EXPECT_EQ(heard.closes, 1);
  EXPECT_FALSE(heard.pushed_after_end);
  completed_ += heard.status.ok();
  if (!heard.status.ok()) {
    const auto code = heard.status.code();
    EXPECT_TRUE((code == absl::StatusCode::kCancelled && a.cancelled) ||
                (code == absl::StatusCode::kUnavailable && a.cut) ||
                code == absl::StatusCode::kDataLoss ||
                // Beside pins that came later.
                (code == absl::StatusCode::kInvalidArgument &&
                 GetErrorDetail(heard.status)->reason == Reason::kTooLarge) ||
                (code == absl::StatusCode::kInternal &&
                 GetErrorDetail(heard.status)->reason == Reason::kWorkerLost))
        << heard.status;
  }
  CheckTokens(a);
}

void RandomLife::CheckTokens(const Asked& a) {
  const Heard& heard = *a.sent.heard;
  const bool ok = heard.status.ok();
  for (int i = 0; i < a.sent.request.n; ++i) {
    const auto it = heard.tokens.find(i);
    const std::vector<int32_t> got = it == heard.tokens.end() ? std::vector<int32_t>{} : it->second;
    const std::vector<int32_t> want = world_.ExpectedTokens(a.sent, static_cast<uint32_t>(i));
    ASSERT_LE(got.size(), want.size());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin())) << heard.accepted.request_id;
    if (ok && !a.stopped.contains(i)) {
      EXPECT_EQ(got.size(), want.size());
    }
  }
  if (!a.sent.request.prompt_logprobs || !ok || a.stopped.contains(0)) return;
  ASSERT_EQ(heard.prompt_logprobs.size(), a.sent.request.token_ids->size() - 1);
  for (size_t k = 0; k < heard.prompt_logprobs.size(); ++k) {
    EXPECT_EQ(heard.prompt_logprobs[k].logprob, -static_cast<float>(k + 1));
  }
}

}  // namespace rootstock
