// Prefills that follow their Loads by layer, and what that costs others: DESIGN §5, FAULTS F8,
// G1, H5, H6.
#include <map>

#include "common/base/status.h"
#include "coordinator/engine/testing/world.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

class ByLayer : public testing::Test {
 protected:
  static WorldOptions Options() {
    WorldOptions options;
    options.prepare = [](FakeGroup& group) {
      group.loads_by_layer = true;
      group.keep_log = true;
    };
    return options;
  }
  World world_{Options()};
};

TEST_F(ByLayer, ThePrefillFollowsItsLoadInAnEagerStep) {
  FakeGroup& group = world_.AddGroup("g");
  world_.Add("a");
  const auto cold = world_.Generate(World::Ask("a", {5, 6, 7}, 6));
  world_.Run();
  group.CompleteOther(0);  // the Prefetch
  world_.Run();
  EXPECT_EQ(group.pending_others(), 1u);  // the Load
  EXPECT_EQ(group.eager_plans, 2u);
  group.CompleteStep();
  world_.Run();
  EXPECT_TRUE(cold.heard->tokens.contains(0));  // its Load has not completed for us
  const uint64_t eager = group.eager_plans;
  group.CompleteOther(0);
  world_.Settle();
  world_.ExpectRight(cold);
  EXPECT_EQ(group.eager_plans, eager);  // none once it is complete
  world_.ExpectClean();
}

TEST_F(ByLayer, AStepThatNamesNoLoadingAdapterIsNotEager) {
  FakeGroup& group = world_.AddGroup("g");
  world_.Add("a");
  world_.Generate(World::Ask("a", {5, 6, 7}, 6));
  world_.Settle();
  const uint64_t eager = group.eager_plans;
  world_.Generate(World::Ask("a", {5, 6, 7}, 6));
  world_.Generate(World::Ask("base", {5, 6, 7}, 6));
  world_.Settle();
  EXPECT_EQ(group.eager_plans, eager);
}

TEST_F(ByLayer, ALoadThatFailsUnderItsStepsFailsTheirRequestsAndGivesBackThePages) {
  FakeGroup& group = world_.AddGroup("g");
  const Digest a = world_.Add("a");
  group.FailLoad(a, MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "blob", "x",
                              "flipped bit"));
  const auto one = world_.Generate(World::Ask("a", {5, 6, 7}, 20));
  world_.Run();
  group.CompleteOther(0);
  world_.Run();
  const auto base = world_.Generate(World::Ask("base", {5, 6, 7}, 20));
  world_.Run();
  ASSERT_EQ(group.eager_plans, 2u);
  ASSERT_EQ(group.pending_others(), 1u);
  group.CompleteOther(0);
  world_.Run();
  const auto two = world_.Generate(World::Ask("a", {9}, 4));  // while its pages are still read
  world_.Settle();
  EXPECT_EQ(ReasonOf(one.heard->status), Reason::kDigestMismatch);
  world_.ExpectRight(base);
  world_.ExpectRight(two);
  EXPECT_EQ(world_.Metric("adapter_evictions_total{reason=\"retire\",tier=\"device\"}"), 0);
  world_.ExpectClean();
}

// The workers refuse a step whose adapter can't be had, and what was sent behind it.
TEST_F(ByLayer, G1ALoadThatFailsWithItsStepOnTheWayHurtsItsOwnRequestsAlone) {
  FakeGroup& group = world_.AddGroup("g");
  world_.Add("hot");
  world_.Generate(World::Ask("hot", {5}, 2));
  world_.Settle();
  for (const bool load_first : {true, false}) {
    SCOPED_TRACE(load_first);
    const std::string which = load_first ? "1" : "2";
    const Digest bad = world_.Add("bad" + which), cold = world_.Add("cold" + which);
    group.FailLoad(bad, MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "blob", "x",
                                  "flipped bit"));
    std::vector<World::Sent> good;
    for (const char* name : {"base", "hot", "base"}) {
      good.push_back(world_.Generate(World::Ask(name, {5, 6, 7}, 20)));
    }
    const auto one = world_.Generate(World::Ask("bad" + which, {5, 6, 7}, 20));
    good.push_back(world_.Generate(World::Ask("cold" + which, {5, 6, 8}, 20)));
    good.push_back(world_.Generate(World::Ask("base", std::vector<int32_t>(60, 3), 20)));
    world_.Run();
    while (group.pending_fetches() > 0) {
      group.CompleteOther(0);
      world_.Run();
    }
    const uint64_t refused = group.refused_plans;
    if (load_first) {
      const uint64_t eager = group.eager_plans;
      while (group.eager_plans == eager) {
        group.CompleteStep();
        world_.Run();
      }
      good.push_back(world_.Generate(World::Ask("base", {5, 6, 9}, 20)));
      good.push_back(world_.Generate(World::Ask("hot", {5, 6, 9}, 20)));
      world_.Run();
      group.CompleteOther(0);  // while the step is on its way
      world_.Run();
    } else {
      while (group.refused_plans == refused) {
        group.CompleteStep();
        world_.Run();
      }
    }
    world_.Settle();
    EXPECT_GT(group.refused_plans, refused);
    EXPECT_EQ(one.heard->status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(ReasonOf(one.heard->status), Reason::kDigestMismatch);
    for (const World::Sent& sent : good) world_.ExpectRight(sent);
    EXPECT_FALSE(group.residents().contains(bad));
    EXPECT_TRUE(group.residents().contains(cold));
    world_.ExpectClean();
  }
  const auto again = world_.Generate(World::Ask("bad1", {5, 6, 7}, 20));  // it can be had now
  world_.Settle();
  world_.ExpectRight(again);
  world_.ExpectClean();
}

// Of the rows that others may run while a Load is under way, following it costs none.
TEST_F(ByLayer, H6OthersGoFirstAndFollowersWaitForTheirLoads) {
  FakeGroup& group = world_.AddGroup("g");
  world_.Add("hot");
  for (const char* name : {"a", "b"}) world_.Add(name);
  world_.Generate(World::Ask("hot", {5}, 2));
  world_.Settle();
  const uint64_t eager = group.eager_plans;
  const auto base = world_.Generate(World::Ask("base", {5}, 60));
  const auto hot = world_.Generate(World::Ask("hot", {5}, 60));
  std::vector<World::Sent> cold;
  for (const char* name : {"a", "b"}) cold.push_back(world_.Generate(World::Ask(name, {6}, 9)));
  world_.Run();
  while (group.pending_fetches() > 0) {  // the Loads stay under way
    group.CompleteOther(0);
    world_.Run();
  }
  ASSERT_EQ(group.pending_others(), 2u);
  for (int i = 0; i < 40; ++i) {
    group.CompleteStep();
    world_.Run();
  }
  EXPECT_EQ(group.eager_plans, eager);
  EXPECT_GE(base.heard->tokens.at(0).size(), 39u);
  EXPECT_GE(hot.heard->tokens.at(0).size(), 38u);
  group.CompleteOther(0);
  world_.Run();
  for (int i = 0; i < 3; ++i) {
    group.CompleteStep();
    world_.Run();
  }
  EXPECT_TRUE(cold[0].heard->tokens.contains(0));  // beside the others, once its Load is complete
  EXPECT_FALSE(cold[1].heard->tokens.contains(0));
  world_.Settle();
  for (const auto& sent : {base, hot, cold[0], cold[1]}) world_.ExpectRight(sent);
  EXPECT_EQ(group.eager_plans, eager);
  world_.ExpectClean();
}

// More of them than there are slots close the group to nobody.
TEST_F(ByLayer, H6ABurstOfFollowersLeavesSlotsToWhoComesLater) {
  FakeGroup& group = world_.AddGroup("g", 400);  // eight sequences
  world_.Add("a");
  std::vector<World::Sent> all = {world_.Generate(World::Ask("base", {5}, 100))};
  world_.Run();
  for (int i = 0; i < 140; ++i) all.push_back(world_.Generate(World::Ask("a", {6, i % 40}, 3)));
  world_.Run();
  while (group.pending_fetches() > 0) {  // the Load stays under way
    group.CompleteOther(0);
    world_.Run();
  }
  const auto later = world_.Generate(World::Ask("base", {7}, 6));
  all.push_back(later);
  for (int i = 0; i < 10; ++i) {
    world_.Run();
    group.CompleteStep();
  }
  world_.Run();
  ASSERT_TRUE(group.residents().empty());
  EXPECT_TRUE(later.heard->done);
  world_.Settle();
  for (const auto& sent : all) world_.ExpectRight(sent);
  world_.ExpectClean();
}

// Who comes while a Load is followed waits for what is sent: one step runs, one lies behind it.
TEST_F(ByLayer, WhoComesWhileALoadIsFollowedGoesBeforeItsNextStep) {
  FakeGroup& group = world_.AddGroup("g");
  world_.Add("a");
  const auto cold = world_.Generate(World::Ask("a", {5, 6, 7}, 40));
  world_.Run();
  group.CompleteOther(0);  // the Prefetch; the Load stays under way
  world_.Run();
  ASSERT_EQ(group.eager_plans, 2u);
  const auto base = world_.Generate(World::Ask("base", {5}, 10));
  world_.Run();
  for (int i = 0; i < 12; ++i) {
    group.CompleteStep();
    world_.Run();
  }
  world_.ExpectRight(base);
  EXPECT_EQ(cold.heard->tokens.at(0).size(), 2u);
  world_.Settle();
  world_.ExpectRight(cold);
  world_.ExpectClean();
}

TEST_F(ByLayer, SeveralLoadsAreFollowedInTurns) {
  FakeGroup& group = world_.AddGroup("g");
  std::vector<World::Sent> all;
  for (const char* name : {"a", "b", "c"}) {
    world_.Add(name);
    all.push_back(world_.Generate(World::Ask(name, {5, 6, 7}, 40)));
  }
  world_.Run();
  while (group.pending_fetches() > 0) {
    group.CompleteOther(0);
    world_.Run();
  }
  group.CompleteStep();  // both sent steps are of the first that could
  world_.Run();
  group.CompleteStep();
  world_.Run();
  const size_t from = group.log.size();
  for (int i = 0; i < 12; ++i) {
    group.CompleteStep();
    world_.Run();
  }
  std::map<uint32_t, int> steps;  // by slot
  for (size_t i = from; i < group.log.size(); ++i) {
    EXPECT_TRUE(group.log[i].eager);
    ASSERT_EQ(group.log[i].rows.size(), 1u);
    ++steps[group.log[i].rows[0].slot.value];
  }
  EXPECT_EQ(steps.size(), 3u);
  for (const auto& [slot, n] : steps) EXPECT_EQ(n, 4) << slot;
  world_.Settle();
  for (const auto& sent : all) world_.ExpectRight(sent);
  world_.ExpectClean();
}

// Pages go out in scheduler order, whoever's turn it is: H5 with a follower for the stream.
TEST_F(ByLayer, H5AnOlderRequestWithoutPagesIsNotStarvedByYoungerFollowers) {
  FakeGroup& group = world_.AddGroup("g", 33);  // 32 pages of 4 tokens
  world_.Add("a");
  std::vector<World::Sent> all;
  all.push_back(world_.Generate(World::Ask("a", std::vector<int32_t>(60, 3), 8)));
  world_.Run();
  group.CompleteOther(0);  // the Prefetch; the Load stays under way
  world_.Run();
  const auto big = world_.Generate(World::Ask("base", std::vector<int32_t>(90, 4), 8));
  all.push_back(big);
  for (int i = 0; i < 12; ++i) {
    all.push_back(world_.Generate(World::Ask("a", {5, i}, 20)));
    world_.Run();
    group.CompleteStep();
    world_.Run();
  }
  ASSERT_TRUE(group.residents().empty());
  world_.Settle();
  for (const auto& sent : all) world_.ExpectRight(sent);
  std::vector<uint32_t> prompts;  // as they were admitted
  for (const StepPlan& plan : group.log) {
    for (const NewSequence& s : plan.new_sequences) prompts.push_back(s.num_prompt_tokens);
  }
  ASSERT_GE(prompts.size(), 3u);
  EXPECT_EQ(prompts[0], 60u);
  EXPECT_EQ(prompts[1], 90u);
  world_.ExpectClean();
}

TEST_F(ByLayer, F8ALoadThatFindsItsContentGoneIsFetchedAgainBeforeAnyStepNamesIt) {
  FakeGroup& group = world_.AddGroup("g");
  const Digest a = world_.Add("a");
  std::vector<World::Sent> all;
  for (int i = 0; i < 8; ++i) all.push_back(world_.Generate(World::Ask("base", {5, i}, 30)));
  world_.Run();  // all slots are taken
  all.push_back(world_.Generate(World::Ask("a", {5, 6, 7}, 6)));
  world_.Run();
  group.CompleteOther(0);  // the Prefetch
  world_.Run();
  ASSERT_EQ(group.loads, 1u);
  group.FailLoad(a, absl::NotFoundError("no copy is left"));
  group.CompleteOther(0);
  world_.Settle();
  for (const auto& sent : all) world_.ExpectRight(sent);
  EXPECT_EQ(group.prefetches, 2u);
  world_.ExpectClean();
}

TEST_F(ByLayer, ACancelledPrefillLeavesItsLoadToComplete) {
  FakeGroup& group = world_.AddGroup("g");
  const Digest a = world_.Add("a");
  const auto sent = world_.Generate(World::Ask("a", {5, 6, 7}, 20));
  world_.Run();
  group.CompleteOther(0);
  world_.Run();
  world_.engine->Cancel(sent.number);
  world_.Settle();
  EXPECT_TRUE(absl::IsCancelled(sent.heard->status));
  EXPECT_TRUE(group.residents().contains(a));
  world_.ExpectClean();
}

}  // namespace
}  // namespace rootstock
