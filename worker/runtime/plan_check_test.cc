// What a runtime refuses: by name, on every tp_rank alike, and with nothing changed.
#include "worker/runtime/plan_check.h"

#include <gtest/gtest.h>

#include <functional>

#include "worker/runtime/runtime_rig.h"

namespace rootstock {
namespace {

struct Refusal {
  std::string name;
  std::function<StepPlan()> plan;
  std::string field;
};

// Slot 0 holds a prompt of 6 in pages 1 and 2 and has sampled; slot 1 is half way through one of 9;
// the adapter "a" lies in page 40.
StepPlan Start() {
  return {
      {MakeSequence(0, 6, Greedy()), MakeSequence(1, 9, Greedy())},
      {Row(0, 0, Prompt(6), Pages({1, 2})), Row(1, 0, {5, 6}, Pages({3, 4, 5}), RowOutput::kNone)}};
}

NewSequence WithSpans(uint32_t slot, std::vector<AdapterSpan> spans) {
  NewSequence s = MakeSequence(slot, 4, Greedy());
  s.spans = std::move(spans);
  return s;
}

std::vector<AdapterUse> Adapters(const Digest& digest, int count) {
  return std::vector<AdapterUse>(count, {digest, 1.0f});
}

std::vector<Refusal> Refusals() {
  const Digest absent = Sha256Of("absent");
  return {
      {"UnknownSlot", [] { return StepPlan{{}, {Row(7, 0, {5}, Pages({9}))}}; }, "rows[0].slot"},
      {"SlotTwice", [] { return StepPlan{{}, {Row(0, 6, {}, {}), Row(0, 7, {5}, {})}}; },
       "rows[1].slot"},
      {"PositionGap", [] { return StepPlan{{}, {Row(0, 7, {}, {})}}; }, "rows[0].position"},
      {"PositionBack", [] { return StepPlan{{}, {Row(0, 5, {}, {})}}; }, "rows[0].position"},
      {"NothingSampledYet",
       [] { return StepPlan{{MakeSequence(2, 4)}, {Row(2, 0, {}, Pages({9}))}}; },
       "rows[0].tokens"},
      {"InnerChunkSampledNothing",
       [] { return StepPlan{{}, {Row(1, 2, {}, {}, RowOutput::kNone)}}; }, "rows[0].tokens"},
      {"TokenOutsideVocabulary", [] { return StepPlan{{}, {Row(0, 6, {FakeModel::kVocab}, {})}}; },
       "rows[0].tokens"},
      {"NegativeToken", [] { return StepPlan{{}, {Row(0, 6, {-1}, {})}}; }, "rows[0].tokens"},
      {"ScratchPage", [] { return StepPlan{{}, {Row(0, 6, {}, Pages({0}))}}; }, "rows[0].pages"},
      {"PageOutOfRange", [] { return StepPlan{{}, {Row(0, 6, {}, Pages({64}))}}; },
       "rows[0].pages"},
      {"PageOfAnAdapter", [] { return StepPlan{{}, {Row(0, 6, {}, Pages({40}))}}; },
       "rows[0].pages"},
      {"TooFewPages", [] { return StepPlan{{}, {Row(0, 6, Prompt(3), {})}}; }, "rows[0].pages"},
      {"SamplesInsideThePrompt", [] { return StepPlan{{}, {Row(1, 2, {7}, {})}}; },
       "rows[0].output"},
      {"PromptLogprobsNotAskedFor",
       [] { return StepPlan{{}, {Row(1, 2, {7}, {}, RowOutput::kPromptLogprobs)}}; },
       "rows[0].output"},
      {"SlotBeyondTheLimit", [] { return StepPlan{{MakeSequence(16, 2)}, {}}; },
       "new_sequences[0].slot"},
      {"SlotInUse", [] { return StepPlan{{MakeSequence(0, 2)}, {}}; }, "new_sequences[0].slot"},
      {"NewSlotTwice", [] { return StepPlan{{MakeSequence(2, 2), MakeSequence(2, 2)}, {}}; },
       "new_sequences[1].slot"},
      {"OverTheContext", [] { return StepPlan{{MakeSequence(2, 151)}, {}}; },
       "new_sequences[0].num_tokens"},
      {"NothingLeftToRun",
       [] { return StepPlan{{MakeSequence(2, 4)}, {Row(2, 4, {5}, Pages({9, 10}))}}; },
       "rows[0].position"},
      {"TooManyTokens",
       [] {
         return StepPlan{
             {MakeSequence(2, 65)},
             {Row(2, 0, Tokens(65, 5),
                  Pages({9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25}))}};
       },
       "rows"},
      {"AdapterNotResident",
       [absent] {
         return StepPlan{{WithSpans(2, {{0, 0, {{absent, 1.0f}}}})},
                         {Row(2, 0, Prompt(4), Pages({9}))}};
       },
       "rows[0].adapter"},
      {"SpansOverlap", [] { return StepPlan{{WithSpans(2, {{0, 3, {}}, {2, 0, {}}})}, {}}; },
       "new_sequences[0].spans[1].begin"},
      {"FiveAdaptersAtOnePosition",
       [absent] { return StepPlan{{WithSpans(2, {{0, 0, Adapters(absent, 5)}})}, {}}; },
       "new_sequences[0].spans[0].adapters"},
      {"MoreAdaptersThanAStepHolds",
       [] {
         const std::vector<AdapterUse> four = Adapters(Sha256Of("a"), 4);
         NewSequence s = MakeSequence(2, 65, Greedy());
         for (uint32_t i = 0; i < 65; ++i) s.spans.push_back({i, i + 1, four});
         return StepPlan{
             {s},
             {Row(2, 0, Tokens(65, 5),
                  Pages({9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25}),
                  RowOutput::kNone)}};
       },
       "rows.adapters"},
      {"SpanAfterAnOpenOne", [] { return StepPlan{{WithSpans(2, {{0, 0, {}}, {2, 3, {}}})}, {}}; },
       "new_sequences[0].spans[1].begin"},
  };
}

class RefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(RefusalTest, OnEveryRankAndNothingChanged) {
  const Refusal& refusal = GetParam();
  EXPECT_TRUE(RunOnRanks(2, [&](Communicator& c) -> absl::Status {
                Rank rank(c);
                rank.Run(LoadAdapter{Sha256Of("a"), 1, LoraSharding::kReplicated, Pages({40})});
                rank.Step(Start());
                const int forwards = rank.model.forwards;
                StepPlan plan = refusal.plan();
                // A good row before the bad one must not be applied either.
                plan.new_sequences.push_back(MakeSequence(9, 4, Greedy()));
                const Completion refused = rank.Run(std::move(plan));
                EXPECT_FALSE(refused.outcome.ok());
                const auto detail = GetErrorDetail(refused.outcome);
                EXPECT_TRUE(detail.has_value()) << refused.outcome;
                if (detail.has_value()) {
                  EXPECT_EQ(detail->field, refusal.field) << refused.outcome;
                }
                EXPECT_EQ(rank.model.forwards, forwards);
                EXPECT_EQ(rank.runtime.num_sequences(), 2u);
                const StepResult after =
                    rank.Step({{}, {Row(0, 6, {}, {}), Row(1, 2, {7}, {}, RowOutput::kNone)}});
                if (c.rank() == 0) {
                  EXPECT_EQ(after.rows.at(0).tokens[0], Oracle(Prompt(6), 2)[1]);
                }
                return absl::OkStatus();
              }).ok());
}

INSTANTIATE_TEST_SUITE_P(Plans, RefusalTest, testing::ValuesIn(Refusals()),
                         [](const auto& info) { return info.param.name; });

// FAULTS D6: an adapter that one rank could not load is on none, as the ranks agree after each Load
// (worker/link); so a step that names it is refused on all alike, and no collective hangs.
TEST(PlanCheck, D6RanksNeverDisagreeOnTheAdaptersOfAStep) {
  EXPECT_TRUE(RunOnRanks(3, [](Communicator& c) -> absl::Status {
                Rank rank(c);
                if (c.rank() == 2) rank.model.fake_loader().refused.insert(7);
                const LoadAdapter load{Sha256Of("a"), 7, LoraSharding::kFullySharded, Pages({40})};
                const CommandId id = rank.Begin(load);
                EXPECT_EQ(rank.runtime.OutcomeOf(id)->ok(), c.rank() != 2);
                EXPECT_TRUE(rank.runtime.Settle(id, absl::InternalError("rank 2")).ok());
                EXPECT_EQ(rank.runtime.num_adapters(), 0u);
                NewSequence with = MakeSequence(0, 4, Greedy());
                with.spans = {{0, 0, {{Sha256Of("a"), 1.0f}}}};
                const Completion refused =
                    rank.Run(StepPlan{{with}, {Row(0, 0, Prompt(4), Pages({9}))}});
                EXPECT_EQ(GetErrorDetail(refused.outcome)->field, "rows[0].adapter");
                rank.Step({{MakeSequence(0, 4, Greedy())}, {Row(0, 0, Prompt(4), Pages({9}))}});
                return absl::OkStatus();
              }).ok());
}

TEST(PlanCheck, Loads) {
  const auto self = ThreadCommunicator::Self();
  Rank rank(*self);
  const auto load = [&](const char* name, std::vector<PageId> pages) {
    return rank.Run(LoadAdapter{Sha256Of(name), 1, LoraSharding::kReplicated, std::move(pages)})
        .outcome;
  };
  EXPECT_EQ(GetErrorDetail(load("a", Pages({0})))->field, "load.pages");
  EXPECT_EQ(GetErrorDetail(load("a", Pages({64})))->field, "load.pages");
  EXPECT_EQ(GetErrorDetail(load("a", Pages({4, 4})))->field, "load.pages");
  EXPECT_TRUE(load("a", Pages({4})).ok());
  EXPECT_EQ(load("a", Pages({5})).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(GetErrorDetail(load("b", Pages({4})))->field, "load.pages");
  rank.model.fake_loader().refused = {1};
  EXPECT_FALSE(load("b", Pages({6})).ok());
  EXPECT_EQ(rank.runtime.num_adapters(), 1u);
  rank.Run(DropAdapter{Sha256Of("a"), Tier::kDevice});
  EXPECT_EQ(rank.runtime.num_adapters(), 0u);
  rank.model.fake_loader().refused.clear();
  EXPECT_TRUE(load("b", Pages({4})).ok());  // the page is free again
}

TEST(Release, FreesWhatItKnowsAndIgnoresTheRest) {
  const auto self = ThreadCommunicator::Self();
  Rank rank(*self);
  rank.Step({{MakeSequence(0, 2), MakeSequence(1, 2)}, {}});
  // Slot 5 is named by a Step that is refused, so it is never made.
  StepPlan refused{{MakeSequence(5, 2)}, {Row(9, 0, {1}, Pages({1}))}};
  EXPECT_FALSE(rank.Run(std::move(refused)).outcome.ok());
  EXPECT_EQ(rank.runtime.num_sequences(), 2u);
  const auto release = [&](std::vector<SequenceSlot> slots) {
    return rank.Run(ReleaseSlots{std::move(slots)}).outcome;
  };
  EXPECT_TRUE(release({SequenceSlot(5), SequenceSlot(0)}).ok());
  EXPECT_EQ(rank.runtime.num_sequences(), 1u);
  EXPECT_TRUE(release({SequenceSlot(1), SequenceSlot(1)}).ok());
  EXPECT_EQ(rank.runtime.num_sequences(), 0u);
  // All of them may be given again.
  rank.Step({{MakeSequence(0, 2), MakeSequence(1, 2), MakeSequence(5, 2)}, {}});
  EXPECT_EQ(rank.runtime.num_sequences(), 3u);
}

}  // namespace
}  // namespace rootstock
