// From a sequence's position spans to segments of the batch.
#include <gtest/gtest.h>

#include "worker/runtime/runtime_rig.h"

namespace rootstock {
namespace {

class AdapterSpansTest : public testing::Test {
 protected:
  void SetUp() override {
    rank_.Run(LoadAdapter{Sha256Of("a"), 1, LoraSharding::kReplicated, Pages({40})});
    rank_.Run(LoadAdapter{Sha256Of("b"), 1, LoraSharding::kReplicated, Pages({41})});
  }
  static NewSequence With(uint32_t slot, std::vector<AdapterSpan> spans) {
    NewSequence s = MakeSequence(slot, 6, Greedy());
    s.spans = std::move(spans);
    return s;
  }
  const AdapterUse a_{Sha256Of("a"), 1.0f};
  const AdapterUse b_{Sha256Of("b"), 0.5f};
  std::unique_ptr<ThreadCommunicator> self_ = ThreadCommunicator::Self();
  Rank rank_{*self_};
};

TEST_F(AdapterSpansTest, MixedBatchGivesEachRowItsOwn) {
  const StepResult r = rank_.Step(
      {{With(0, {{0, 0, {a_}}}), With(1, {}), With(2, {{0, 0, {b_}}}), With(3, {{0, 0, {a_, b_}}})},
       {Row(0, 0, Prompt(6), Pages({1, 2})), Row(1, 0, Prompt(6), Pages({3, 4})),
        Row(2, 0, Prompt(6), Pages({5, 6})), Row(3, 0, Prompt(6), Pages({7, 8}))}});
  EXPECT_EQ(r.rows[0].tokens, Oracle(Prompt(6), 1, {{40, 1.0f}}));
  EXPECT_EQ(r.rows[1].tokens, Oracle(Prompt(6), 1));
  EXPECT_EQ(r.rows[2].tokens, Oracle(Prompt(6), 1, {{41, 0.5f}}));
  EXPECT_EQ(r.rows[3].tokens, Oracle(Prompt(6), 1, {{40, 1.0f}, {41, 0.5f}}));
  EXPECT_EQ(r.distinct_adapters, 2u);
  const StepResult next = rank_.Step({{}, {Row(3, 6, {}, {}), Row(0, 6, {}, {})}});
  EXPECT_EQ(next.rows[0].tokens[0], Oracle(Prompt(6), 2, {{40, 1.0f}, {41, 0.5f}})[1]);
  EXPECT_EQ(next.rows[1].tokens[0], Oracle(Prompt(6), 2, {{40, 1.0f}})[1]);
}

// A base prefix and then an adapter: one row lies in both spans.
TEST_F(AdapterSpansTest, SegmentsFollowPositions) {
  StepPlan plan{{With(0, {{0, 2, {}}, {2, 4, {a_}}, {4, 0, {b_, a_}}})},
                {Row(0, 0, Prompt(5), Pages({1, 2}), RowOutput::kNone)}};
  AdapterTable table;
  FakeModel model(0);
  for (const auto& [name, page] : {std::pair{"a", 40u}, std::pair{"b", 41u}}) {
    model.loader().Load(CommandId(page),
                        {Sha256Of(name), 1, LoraSharding::kReplicated, Pages({page})});
    ASSERT_TRUE(table.Add(Sha256Of(name), model.loader().Take(CommandId(page))).ok());
  }
  Sequence sequence(plan.new_sequences[0]);
  sequence.page_table = {1, 2};
  const std::vector<StepRow> rows = {{&plan.rows[0], &sequence, plan.rows[0].tokens}};
  const std::vector<StepBatch> batches = CutIntoBatches(rows, table, FakeModel::kPageTokens, 4);
  ASSERT_EQ(batches.size(), 1u);
  const auto& segments = batches[0].forward.segments;
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0].begin, 2);
  EXPECT_EQ(segments[0].end, 4);
  EXPECT_EQ(segments[0].adapter, table.Find(Sha256Of("a")));
  EXPECT_EQ(segments[1].begin, 4);
  EXPECT_EQ(segments[1].end, 5);
  EXPECT_EQ(segments[1].adapter, table.Find(Sha256Of("b")));
  EXPECT_EQ(segments[1].scale, 0.5f);
  EXPECT_EQ(segments[2].adapter, table.Find(Sha256Of("a")));
  EXPECT_EQ(CountDistinctAdapters(batches), 2u);
}

TEST_F(AdapterSpansTest, SpanBeyondTheRowNeedsNoAdapterYet) {
  const AdapterUse absent{Sha256Of("absent"), 1.0f};
  rank_.Step({{With(0, {{0, 6, {}}, {6, 0, {absent}}})}, {Row(0, 0, Prompt(6), Pages({1, 2}))}});
  EXPECT_FALSE(rank_.Run(StepPlan{{}, {Row(0, 6, {}, {})}}).outcome.ok());
  rank_.Run(LoadAdapter{Sha256Of("absent"), 1, LoraSharding::kReplicated, Pages({42})});
  rank_.Step({{}, {Row(0, 6, {}, {})}});
}

TEST_F(AdapterSpansTest, EvictedAndReloadedElsewhere) {
  rank_.Step({{With(0, {{0, 0, {a_}}})}, {Row(0, 0, Prompt(6), Pages({1, 2}))}});
  rank_.Run(DropAdapter{Sha256Of("a"), Tier::kDevice});
  EXPECT_FALSE(rank_.Run(StepPlan{{}, {Row(0, 6, {}, {})}}).outcome.ok());
  rank_.Run(LoadAdapter{Sha256Of("a"), 1, LoraSharding::kReplicated, Pages({50})});
  EXPECT_TRUE(rank_.Run(StepPlan{{}, {Row(0, 6, {}, Pages({40}))}}).outcome.ok());
}

TEST_F(AdapterSpansTest, AttachReportsWhatIsResident) {
  rank_.Run(DropAdapter{Sha256Of("b")});
  const auto report = rank_.runtime.Attach({1, 2}, {});
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->adapters.size(), 1u);
  EXPECT_EQ(report->adapters[0].digest, Sha256Of("a"));
  EXPECT_EQ(report->adapters[0].pages, Pages({40}));
}

}  // namespace
}  // namespace rootstock
