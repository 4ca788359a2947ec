// Loads beside the steps, as every tp_rank sees them.
#include "worker/runtime/runtime_rig.h"

namespace rootstock {
namespace {

LoadAdapter LoadOf(const std::string& name, std::vector<PageId> pages) {
  return {Sha256Of(name), 1, LoraSharding::kReplicated, std::move(pages)};
}

StepPlan PromptWith(uint32_t slot, const std::string& name, std::vector<PageId> pages,
                    bool eager = false) {
  NewSequence sequence = MakeSequence(slot, 4, Greedy());
  sequence.spans = {{0, 0, {{Sha256Of(name), 1.0f}}}};
  StepPlan plan{{sequence}, {Row(slot, 0, Prompt(4), std::move(pages))}};
  plan.eager = eager;
  return plan;
}

class AdapterLoadsTest : public testing::Test {
 protected:
  AdapterLoadsTest() { loader_.hold = true; }
  std::unique_ptr<ThreadCommunicator> self_ = ThreadCommunicator::Self();
  Rank rank_{*self_};
  FakeLoader& loader_ = rank_.model.fake_loader();
};

TEST_F(AdapterLoadsTest, StepsRunWhileALoadDoes) {
  const CommandId load = rank_.Begin(LoadOf("a", Pages({40})));
  EXPECT_FALSE(rank_.runtime.OutcomeOf(load).has_value());
  rank_.Step({{MakeSequence(0, 4, Greedy())}, {Row(0, 0, Prompt(4), Pages({1, 2}))}});
  EXPECT_EQ(rank_.Decode(0, 4, 2).size(), 2u);
  // It is on no rank before it is on all.
  loader_.End(load);
  EXPECT_FALSE(rank_.Run(PromptWith(1, "a", Pages({3}))).outcome.ok());
  EXPECT_EQ(rank_.runtime.num_adapters(), 0u);
  EXPECT_TRUE(rank_.runtime.Settle(load, absl::OkStatus()).ok());
  EXPECT_EQ(rank_.runtime.num_adapters(), 1u);
  EXPECT_EQ(rank_.Step(PromptWith(1, "a", Pages({3}))).rows[0].tokens,
            Oracle(Prompt(4), 1, {{40, 1.0f}}));
}

TEST_F(AdapterLoadsTest, PagesAreHeldUntilEveryRankHasEnded) {
  const CommandId load = rank_.Begin(LoadOf("a", Pages({41})));
  const auto use = [this](uint32_t page) {
    return rank_.Run(StepPlan{{MakeSequence(0, 4)}, {Row(0, 0, Prompt(4), Pages({page}))}}).outcome;
  };
  EXPECT_FALSE(use(41).ok());
  EXPECT_EQ(rank_.Run(LoadOf("b", Pages({41}))).outcome.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rank_.Run(LoadOf("a", Pages({50}))).outcome.code(), absl::StatusCode::kAlreadyExists);
  loader_.End(load);  // here, well
  EXPECT_FALSE(use(41).ok());
  EXPECT_TRUE(rank_.runtime.Settle(load, absl::InternalError("another rank")).ok());
  EXPECT_EQ(rank_.runtime.num_adapters(), 0u);
  EXPECT_TRUE(use(41).ok());
}

TEST_F(AdapterLoadsTest, AnEagerStepFollowsTheCopy) {
  const CommandId load = rank_.Begin(LoadOf("a", Pages({40})));
  EXPECT_FALSE(rank_.Run(PromptWith(0, "a", Pages({3}), /*eager=*/false)).outcome.ok());
  EXPECT_EQ(rank_.Step(PromptWith(0, "a", Pages({3}), /*eager=*/true)).rows[0].tokens,
            Oracle(Prompt(4), 1, {{40, 1.0f}}));
  EXPECT_EQ(loader_.followed, std::vector<int>({0, 1}));
  // The next one too, as the load goes on; afterwards there is nothing to follow.
  StepPlan decode{{}, {Row(0, 4, {}, Pages({4}))}};
  EXPECT_FALSE(rank_.Run(StepPlan(decode)).outcome.ok());
  decode.eager = true;
  rank_.Step(StepPlan(decode));
  EXPECT_EQ(loader_.followed.size(), 4u);
  loader_.End(load);
  EXPECT_TRUE(rank_.runtime.Settle(load, absl::OkStatus()).ok());
  rank_.Step({{}, {Row(0, 5, {}, {})}});
  StepPlan eager{{}, {Row(0, 6, {}, {})}};
  eager.eager = true;
  rank_.Step(std::move(eager));
  EXPECT_EQ(loader_.followed.size(), 4u);
}

TEST_F(AdapterLoadsTest, ALoadThatFailsUnderAnEagerStepIsGone) {
  const CommandId load = rank_.Begin(LoadOf("a", Pages({40})));
  rank_.Step(PromptWith(0, "a", Pages({3}), /*eager=*/true));
  loader_.End(load);
  EXPECT_TRUE(rank_.runtime.Settle(load, absl::InternalError("another rank")).ok());
  EXPECT_EQ(rank_.runtime.num_adapters(), 0u);
  const Completion refused = rank_.Run(StepPlan{{}, {Row(0, 4, {}, Pages({40}))}});
  EXPECT_EQ(GetErrorDetail(refused.outcome)->field, "rows[0].adapter");
}

TEST_F(AdapterLoadsTest, AFailedLoadFailsTheEagerStepAndChangesNothing) {
  loader_.refused = {1};
  const CommandId load = rank_.Begin(LoadOf("a", Pages({40})));
  const StepPlan plan = PromptWith(0, "a", Pages({3}), /*eager=*/true);
  EXPECT_EQ(GetErrorDetail(rank_.runtime.AwaitLoads(plan))->reason, Reason::kBaseMismatch);
  EXPECT_FALSE(rank_.Run(StepPlan(plan)).outcome.ok());
  EXPECT_EQ(rank_.runtime.num_sequences(), 0u);
  EXPECT_TRUE(rank_.runtime.Settle(load, absl::InternalError("here")).ok());
  EXPECT_EQ(rank_.runtime.num_adapters(), 0u);
}

TEST_F(AdapterLoadsTest, AttachForgetsWhatIsUnderWay) {
  const CommandId done = rank_.Begin(LoadOf("a", Pages({40})));
  loader_.End(done);
  EXPECT_TRUE(rank_.runtime.Settle(done, absl::OkStatus()).ok());
  rank_.Begin(LoadOf("b", Pages({41})));
  rank_.Step(PromptWith(0, "b", Pages({3}), /*eager=*/true));
  const auto report = rank_.runtime.Attach({1, 2}, {150, 16, 64, 20});
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->loads_by_layer);
  ASSERT_EQ(report->adapters.size(), 1u);
  EXPECT_EQ(report->adapters[0].digest, Sha256Of("a"));
  loader_.hold = false;
  EXPECT_TRUE(rank_.Run(LoadOf("b", Pages({41}))).outcome.ok());  // digest and page are free
}

TEST_F(AdapterLoadsTest, DropSaysWhatItFreed) {
  loader_.hold = false;
  rank_.Run(LoadOf("a", Pages({40})));
  HostCache& host = loader_.host();
  host.Insert({Sha256Of("a"), 1}, *host.Reserve(2), false);
  EXPECT_EQ(rank_.Run(DropAdapter{Sha256Of("a"), Tier::kHost}).freed, (TierBytes{0, 2048, 0}));
  const Completion dropped = rank_.Run(DropAdapter{Sha256Of("a"), kAllTiers});
  EXPECT_EQ(dropped.freed, (TierBytes{1024, 0, 0}));
  EXPECT_EQ(rank_.Run(DropAdapter{Sha256Of("a"), kAllTiers}).freed, TierBytes{});
  loader_.hold = true;
  rank_.Begin(LoadOf("a", Pages({40})));
  EXPECT_EQ(rank_.Run(DropAdapter{Sha256Of("a")}).outcome.code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace rootstock
