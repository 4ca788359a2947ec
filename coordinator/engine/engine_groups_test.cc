// Attaching, losing and draining groups: PROTOCOL §2 and §8.
#include "common/base/status.h"
#include "coordinator/engine/testing/toy_model.h"
#include "coordinator/engine/testing/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using testing::HasSubstr;

TEST(EngineGroups, ALostGroupsStreamsGoOnElsewhereWithoutGapOrRepeat) {
  World world;
  FakeGroup& first = world.AddGroup("first");
  world.Add("a");
  std::vector<World::Sent> all;
  for (int i = 0; i < 4; ++i) {
    GenerateRequest r = World::Ask(i % 2 == 0 ? "a" : "base", {5, 6, i}, 20);
    r.n = i == 3 ? 3 : 1;
    all.push_back(world.Generate(std::move(r)));
  }
  for (int i = 0; i < 7; ++i) {
    world.Run();
    first.CompleteAll();
  }
  world.Run();
  const size_t before = all[0].heard->tokens[0].size();
  EXPECT_GT(before, 0u);
  EXPECT_LT(before, 20u);
  first.Die();
  world.Run();
  EXPECT_EQ(world.StatusOf("first").state, "broken");
  EXPECT_EQ(all[0].heard->closes, 0);
  FakeGroup& second = world.AddGroup("second");
  second.keep_log = true;
  world.Settle();
  for (const auto& sent : all) world.ExpectRight(sent);
  EXPECT_TRUE(second.violations.empty());
  EXPECT_GT(world.Metric("replays_total{reason=\"group_lost\"}"), 0);
  world.ExpectClean();
}

TEST(EngineGroups, TheThirdDeathWithASequenceInFlightFailsItAndTheThirdRunIsAlone) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  group.keep_log = true;
  const auto suspect = world.Generate(World::Ask("base", {5, 6}, 30));
  world.Run();
  for (int death = 0; death < 2; ++death) {
    group.Die();
    world.Run();
    ASSERT_TRUE(group.Attach(*world.engine).ok());
    world.Run();
  }
  const auto other = world.Generate(World::Ask("base", {7}, 5));
  group.log.clear();
  world.Run();
  group.CompleteStep();
  world.Run();
  for (const StepPlan& plan : group.log) EXPECT_EQ(plan.rows.size(), 1u);
  EXPECT_FALSE(suspect.heard->done);
  group.Die();
  world.Run();
  EXPECT_EQ(suspect.heard->status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReasonOf(suspect.heard->status), Reason::kWorkerLost);
  ASSERT_TRUE(group.Attach(*world.engine).ok());
  world.Settle();
  world.ExpectRight(other);
  EXPECT_EQ(world.Metric("outcome=\"worker_lost\",tenant_class=\"default\"}"), 1);
  world.ExpectClean();
}

TEST(EngineGroups, ASuspectThatSurvivesAloneIsAnswered) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const auto suspect = world.Generate(World::Ask("base", {5, 6}, 10));
  const auto other = world.Generate(World::Ask("base", {6}, 10));
  world.Run();
  for (int death = 0; death < 2; ++death) {
    group.Die();
    world.Run();
    ASSERT_TRUE(group.Attach(*world.engine).ok());
    world.Run();
  }
  world.Settle();
  world.ExpectRight(suspect);
  world.ExpectRight(other);
  world.ExpectClean();
}

TEST(EngineGroups, ARestartedCoordinatorFindsTheAdaptersInPlace) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  world.Add("a");
  world.Add("b");
  world.Generate(World::Ask("a", {5}, 3));
  world.Generate(World::Ask("b", {5}, 3));
  world.Settle();
  EXPECT_EQ(group.loads, 2u);
  const Epoch before = group.epoch();
  group.Die(absl::UnavailableError("the coordinator went"));
  world.RestartEngine();
  ASSERT_TRUE(group.Attach(*world.engine).ok());
  EXPECT_GT(group.epoch(), before);
  EXPECT_EQ(world.StatusOf("g").adapters.size(), 2u);
  const auto sent = world.Generate(World::Ask("a", {5, 6}, 8));
  world.Settle();
  world.ExpectRight(sent);
  EXPECT_EQ(group.loads, 2u);  // nothing was loaded again
  world.ExpectClean();
}

TEST(EngineGroups, ResidentsOfAnotherLayoutOrUnknownAreDropped) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  world.Add("a");
  world.Add("b");
  world.Generate(World::Ask("a", {5}, 3));
  world.Generate(World::Ask("b", {5}, 3));
  world.Settle();
  group.Die();
  world.Run();
  ASSERT_TRUE(world.registry->Unregister("b", "default").ok());
  group.ChangeLayouts({Sha256Of("content-of-a")});
  ASSERT_TRUE(group.Attach(*world.engine).ok());
  world.Settle();
  EXPECT_EQ(world.StatusOf("g").pages_adapter, 0u);
  EXPECT_TRUE(group.residents().empty());
  const auto sent = world.Generate(World::Ask("a", {5, 6}, 8));
  world.Settle();
  world.ExpectRight(sent);
  world.ExpectClean();
}

TEST(EngineGroups, AMismatchIsRefusedByName) {
  World world;
  world.AddGroup("g");
  const struct {
    std::function<void(GroupInfo&)> change;
    const char* text;
    Reason reason;
  } cases[] = {
      {[](GroupInfo& i) { i.model_fingerprint = Sha256Of("other"); },
       "model_fingerprint=", Reason::kGroupMismatch},
      {[](GroupInfo& i) { i.build = "build-2"; }, "build=", Reason::kGroupMismatch},
      {[](GroupInfo& i) { i.ranks[1].build = "build-2"; }, "of tp_rank 1", Reason::kGroupMismatch},
      {[](GroupInfo& i) { i.ranks.pop_back(); }, "tp_size=2", Reason::kGroupMismatch},
      {[](GroupInfo& i) { i.pool = "prefill"; }, "pool=prefill", Reason::kGroupMismatch},
      {[](GroupInfo& i) { i.name = ""; }, "group", Reason::kGroupMismatch},
      {[](GroupInfo& i) { i.name = "a\nb"; }, "must match [a-z0-9]", Reason::kGroupMismatch},
      {[](GroupInfo& i) {
         i.tp_size = 4;
         i.ranks.resize(4, i.ranks[0]);
       },
       "tp_size=4", Reason::kCannotSplit},
  };
  for (const auto& c : cases) {
    FakeGroup other("other", 64, 4);
    c.change(other.info);
    const absl::Status status = other.Attach(*world.engine);
    EXPECT_EQ(ReasonOf(status), c.reason) << c.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.text));
  }
  FakeGroup none("none", 1, 4);
  EXPECT_EQ(ReasonOf(none.Attach(*world.engine)), Reason::kGroupMismatch);
}

TEST(EngineGroups, OnlyTheLatestAttachCounts) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const auto sent = world.Generate(World::Ask("base", {5}, 10));
  world.Run();
  const auto stale = world.engine->OnHello(group.info);
  ASSERT_TRUE(stale.ok());
  // The group attaches again before its old stream is known to be dead.
  FakeGroup reborn("g", 64, 4);
  ASSERT_TRUE(reborn.Attach(*world.engine).ok());
  const AttachReport late{stale->epoch, {64, 4096, 4}, DType::kF32, {}};
  EXPECT_EQ(ReasonOf(world.engine->OnAttached(group.info, late, nullptr).status()),
            Reason::kStaleEpoch);
  for (int i = 0; i < 30; ++i) {
    world.Run();
    reborn.CompleteAll();
  }
  world.ExpectRight(sent);
  EXPECT_TRUE(reborn.violations.empty());
  group.Die();  // the old stream's end reaches nobody
  world.Run();
  EXPECT_EQ(world.StatusOf("g").state, "ready");
}

TEST(EngineGroups, ASecondRunUnderTheNameOfAnAttachedGroupIsRefused) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const auto sent = world.Generate(World::Ask("base", {5}, 10));
  world.Run();
  for (const bool other_host : {false, true}) {
    FakeGroup second("g", 64, 4);
    if (other_host) {
      second.info.ranks[0].host = "elsewhere";
    } else {
      second.info.ranks[0].pid = 77;
    }
    const absl::Status refused = second.Attach(*world.engine);
    EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(ReasonOf(refused), Reason::kGroupMismatch);
    EXPECT_EQ(refused.message(), "group=g: already attached from host pid 1");
  }
  // The first one heard nothing of it.
  EXPECT_EQ(world.StatusOf("g").state, "ready");
  world.Settle();
  world.ExpectRight(sent);
  EXPECT_EQ(group.epoch().attach, 1u);
  world.ExpectClean();
}

TEST(EngineGroups, ALostGroupsNameIsFreeAtOnceAndItsReturnIsCounted) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const auto sent = world.Generate(World::Ask("base", {5}, 10));
  world.Run();
  group.Die();
  // Before the engine's thread has heard of the loss.
  world.executor.Advance(absl::Seconds(3));
  FakeGroup second("g", 64, 4);
  second.info.ranks[0].pid = 77;
  ASSERT_TRUE(second.Attach(*world.engine).ok());
  while (!sent.heard->done) {
    world.Run();
    ASSERT_TRUE(second.CompleteAll());
  }
  world.ExpectRight(sent);
  EXPECT_EQ(world.Metric("group_reforms_total{cause=\"rank_exit\",group=\"g\"}"), 1);
  EXPECT_EQ(world.Metric("group_reform_duration_seconds_sum"), 3);
  EXPECT_EQ(world.Metric("retries_total{reason=\"group_lost\"}"), 1);
  // The same processes over a new stream are no reform.
  second.Die();
  ASSERT_TRUE(second.Attach(*world.engine).ok());
  world.Run();
  EXPECT_EQ(world.Metric("group_reform_duration_seconds_count"), 1);
  second.AskToLeave();
  world.Run();
  EXPECT_TRUE(second.left);
  second.Die(absl::OkStatus());
  FakeGroup third("g", 64, 4);
  third.info.ranks[0].pid = 78;
  ASSERT_TRUE(third.Attach(*world.engine).ok());
  EXPECT_EQ(world.Metric("group_reforms_total{cause=\"operator\",group=\"g\"}"), 1);
}

TEST(EngineGroups, ADrainedGroupFinishesGivesBackAndLeaves) {
  World world({.limits = {.max_model_len = 64, .max_num_seqs = 2, .max_num_batched_tokens = 16}});
  FakeGroup& old = world.AddGroup("old");
  std::vector<World::Sent> all;
  for (int i = 0; i < 6; ++i) all.push_back(world.Generate(World::Ask("base", {5, i}, 8)));
  world.Run();
  old.CompleteStep();
  world.Run();
  EXPECT_EQ(world.engine->DrainGroup("nobody").code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(world.engine->DrainGroup("old").ok());
  world.Run();
  EXPECT_EQ(world.StatusOf("old").state, "draining");
  EXPECT_FALSE(old.left);
  world.Settle();
  EXPECT_TRUE(old.left);
  world.ExpectRight(all[0]);
  world.ExpectRight(all[1]);
  EXPECT_FALSE(all[2].heard->done);
  EXPECT_EQ(world.Metric("retries_total{reason=\"drain\"}"), 4);
  FakeGroup& fresh = world.AddGroup("fresh");
  world.Settle();
  for (const auto& sent : all) world.ExpectRight(sent);
  old.Die(absl::OkStatus());
  fresh.AskToLeave();
  world.Settle();
  EXPECT_TRUE(fresh.left);
  world.ExpectClean();
}

TEST(EngineGroups, RequestsWaitForTheFirstGroup) {
  World world;
  const auto sent = world.Generate(World::Ask("base", {5}, 3));
  world.Run();
  EXPECT_EQ(world.engine->Status().queued, 1u);
  world.AddGroup("g");
  world.Settle();
  world.ExpectRight(sent);
}

TEST(EngineGroups, AStoppedCoordinatorEndsEveryStream) {
  World world;
  world.AddGroup("g");
  const auto running = world.Generate(World::Ask("base", {5}, 30));
  world.Run();
  const auto posted = world.Generate(World::Ask("base", {5}, 30));
  world.engine.reset();
  for (const auto& sent : {running, posted}) {
    EXPECT_EQ(sent.heard->status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(sent.heard->closes, 1);
  }
}

TEST(Placement, PrefersResidencyThenLoadWithinBounds) {
  const PlacementView idle{.ready = true, .line_bound = 4};
  PlacementView busy = idle;
  busy.outstanding = 20;
  PlacementView cold = idle;
  cold.has_adapter = false;
  PlacementView full = idle;
  full.hot_line = 4;
  PlacementView cold_full = cold;
  cold_full.cold_line = 4;
  EXPECT_EQ(Place({}), -1);
  EXPECT_EQ(Place({PlacementView{}}), -1);
  EXPECT_EQ(Place({busy, idle}), 1);
  EXPECT_EQ(Place({cold, idle}), 1);
  EXPECT_EQ(Place({busy, cold}), 1);
  EXPECT_EQ(Place({full}), -1);
  EXPECT_EQ(Place({full, busy}), 1);
  EXPECT_EQ(Place({cold_full}), -1);
}

}  // namespace
}  // namespace rootstock
