// What is shown of groups that form, drain and are lost, and who may have a name meanwhile.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/engine/testing/world.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

// The one state that group g is shown in; a drained one has no series at 1.
std::string StateOfG(World& world) {
  std::string shown;
  for (const char* state : {"forming", "loading", "ready", "draining", "broken"}) {
    const double value =
        world.Metric(std::string("group_state{group=\"g\",state=\"") + state + "\"}");
    if (value == 1) shown += state;
  }
  if (shown.empty()) shown = "drained";
  EXPECT_EQ(world.StatusOf("g").state, shown);
  return shown;
}

double Pages(World& world, const std::string& owner) {
  return world.Metric("pages{group=\"g\",owner=\"" + owner + "\"}");
}

void ExpectNothingShown(World& world) {
  for (const char* owner : {"kv", "adapter", "free"}) EXPECT_EQ(Pages(world, owner), 0) << owner;
  EXPECT_EQ(world.Metric("adapters_resident{group=\"g\",tier=\"device\"}"), 0);
  EXPECT_EQ(world.Metric("adapter_resident_bytes{group=\"g\",tier=\"device\"}"), 0);
  EXPECT_EQ(world.StatusOf("g").pages_kv + world.StatusOf("g").pages_free, 0u);
  EXPECT_TRUE(world.StatusOf("g").adapters.empty());
}

TEST(EngineGroupState, ALostGroupShowsNoPagesUntilItIsBack) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  world.Add("a");
  world.Generate(World::Ask("a", {5}, 3));
  world.Settle();
  const auto sent = world.Generate(World::Ask("base", {5, 6}, 20));
  world.Run();
  EXPECT_EQ(StateOfG(world), "ready");
  EXPECT_GT(Pages(world, "kv"), 0);
  EXPECT_GT(Pages(world, "adapter"), 0);
  EXPECT_EQ(world.Metric("adapters_resident{group=\"g\",tier=\"device\"}"), 1);
  group.Die();
  world.Run();
  EXPECT_EQ(StateOfG(world), "broken");
  ExpectNothingShown(world);
  ASSERT_TRUE(group.Hello(*world.engine).ok());
  EXPECT_EQ(StateOfG(world), "forming");
  ExpectNothingShown(world);
  ASSERT_TRUE(group.Report(*world.engine).ok());
  world.Run();
  EXPECT_EQ(StateOfG(world), "ready");
  EXPECT_EQ(Pages(world, "kv") + Pages(world, "adapter") + Pages(world, "free"), 63);
  EXPECT_EQ(world.Metric("adapters_resident{group=\"g\",tier=\"device\"}"), 1);
  world.Settle();
  world.ExpectRight(sent);
  world.ExpectClean();
}

TEST(EngineGroupState, OneThatDrainsIsShownAsDraining) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const auto sent = world.Generate(World::Ask("base", {5, 6}, 20));
  world.Run();
  group.AskToLeave();
  world.Run();
  EXPECT_EQ(StateOfG(world), "draining");
  EXPECT_GT(Pages(world, "kv"), 0);
  world.Settle();
  EXPECT_EQ(StateOfG(world), "draining");
  EXPECT_EQ(Pages(world, "free"), 63);
  group.Die(absl::OkStatus());
  world.Run();
  EXPECT_EQ(StateOfG(world), "drained");
  ExpectNothingShown(world);
  world.ExpectRight(sent);
  FakeGroup next("g", 64, 4);
  ASSERT_TRUE(next.Attach(*world.engine).ok());
  EXPECT_EQ(StateOfG(world), "ready");
}

TEST(EngineGroupState, ReformsAreCountedFromZeroForEveryCause) {
  World world;
  world.AddGroup("g");
  for (const char* cause : {"rank_exit", "rank_hang", "nccl_error", "xid", "operator"}) {
    EXPECT_EQ(world.Metric(std::string("group_reforms_total{cause=\"") + cause + "\",group=\"g\"}"),
              0);
  }
}

TEST(EngineGroupState, OneThatDiesWhileItDrainsIsBroken) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  world.Generate(World::Ask("base", {5, 6}, 20));
  world.Run();
  group.AskToLeave();
  world.Run();
  group.Die();
  world.Run();
  EXPECT_EQ(StateOfG(world), "broken");
}

TEST(EngineGroupState, WhatAnEarlierAttachStillSaysChangesNothing) {
  World world;
  FakeGroup& old = world.AddGroup("g");
  const auto sent = world.Generate(World::Ask("base", {5, 6}, 20));
  world.Run();
  old.AskToLeave();  // and these are heard after the new attach
  old.Die();
  FakeGroup reborn("g", 32, 4);
  ASSERT_TRUE(reborn.Attach(*world.engine).ok());
  EXPECT_EQ(StateOfG(world), "ready");
  world.Run();
  EXPECT_EQ(StateOfG(world), "ready");
  EXPECT_EQ(Pages(world, "kv") + Pages(world, "free"), 31);
  while (!sent.heard->done) {
    world.Run();
    ASSERT_TRUE(reborn.CompleteAll());
  }
  world.ExpectRight(sent);
}

TEST(EngineGroupState, OfALostGroupNothingRuns) {
  World world;
  for (int i = 0; i < 5; ++i) {
    world.AddGroup("g" + std::to_string(i));
    world.groups["g" + std::to_string(i)]->Die();
    world.Run();
  }
  EXPECT_EQ(world.executor.queues_in_use(), 2u);  // the router's, and that which forgets them
  EXPECT_EQ(world.executor.timers(), 5u);
  EXPECT_EQ(world.StatusOf("g3").state, "broken");
  EXPECT_EQ(world.engine->DrainGroup("g3").code(), absl::StatusCode::kNotFound);
}

std::string Named(const World& world) {
  std::string names;
  for (const GroupStatus& group : world.engine->Status().groups) names += group.info.name;
  return names;
}

TEST(EngineGroupState, OneThatIsLostIsForgottenAfterTenMinutes) {
  World world;
  world.AddGroup("a").Die();                  // lost
  world.AddGroup("b").Die(absl::OkStatus());  // as much as drained
  world.Run();
  FakeGroup forming("c", 64, 4);
  ASSERT_TRUE(forming.Hello(*world.engine).ok());
  world.engine->OnFormingLost("c", forming.epoch());
  FakeGroup waiting("d", 64, 4);
  ASSERT_TRUE(waiting.Hello(*world.engine).ok());  // forms, however long
  world.executor.Advance(absl::Minutes(10) - absl::Seconds(1));
  EXPECT_EQ(Named(world), "abcd");
  FakeGroup back("b", 64, 4);
  ASSERT_TRUE(back.Hello(*world.engine).ok());
  world.executor.Advance(absl::Seconds(1));
  EXPECT_EQ(Named(world), "bd");
  EXPECT_EQ(world.Metric("group_state{group=\"c\",state=\"broken\"}"), 1);
  world.Run();                           // with nobody's Hello
  for (const char* gone : {"a", "c"}) {  // nor have they series: nobody is woken for them
    EXPECT_EQ(world.metrics.Text().find(absl::StrCat("group=\"", gone, "\"")), std::string::npos);
  }
  EXPECT_EQ(world.Metric("group_state{group=\"b\",state=\"forming\"}"), 1);
  FakeGroup again("a", 64, 4);
  ASSERT_TRUE(again.Attach(*world.engine).ok());
  EXPECT_EQ(Named(world), "abd");
  world.Run();
  EXPECT_EQ(world.Metric("group_state{group=\"a\",state=\"ready\"}"), 1);
  world.executor.Advance(absl::Hours(1));
  world.Run();
  EXPECT_EQ(Named(world), "abd");
}

TEST(EngineGroupState, OfTwoThatFormUnderOneNameTheFirstAttaches) {
  World world;
  FakeGroup first("g", 64, 4), second("g", 64, 4);
  second.info.ranks[0].pid = 77;
  ASSERT_TRUE(first.Hello(*world.engine).ok());
  for (int i = 0; i < 3; ++i) {  // as often as it tries
    const absl::Status refused = second.Hello(*world.engine);
    EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(ReasonOf(refused), Reason::kGroupMismatch);
    EXPECT_EQ(refused.message(), "group=g: already forming from host pid 1");
  }
  ASSERT_TRUE(first.Report(*world.engine).ok());
  EXPECT_EQ(second.Hello(*world.engine).message(), "group=g: already attached from host pid 1");
  EXPECT_EQ(StateOfG(world), "ready");
}

TEST(EngineGroupState, TheNameOfOneThatForsookItsAttachIsFree) {
  World world;
  FakeGroup first("g", 64, 4), second("g", 64, 4);
  second.info.ranks[0].pid = 77;
  ASSERT_TRUE(first.Hello(*world.engine).ok());
  const Epoch before = first.epoch();
  ASSERT_TRUE(first.Hello(*world.engine).ok());  // the same processes over a new stream
  world.engine->OnFormingLost("g", before);      // the old one's end comes late
  EXPECT_FALSE(second.Hello(*world.engine).ok());
  EXPECT_EQ(StateOfG(world), "forming");
  world.engine->OnFormingLost("g", first.epoch());
  EXPECT_EQ(StateOfG(world), "broken");
  EXPECT_EQ(ReasonOf(first.Report(*world.engine)), Reason::kStaleEpoch);
  ASSERT_TRUE(second.Hello(*world.engine).ok());
  ASSERT_TRUE(second.Report(*world.engine).ok());
  EXPECT_EQ(StateOfG(world), "ready");
  world.engine->OnFormingLost("nobody", first.epoch());
}

}  // namespace
}  // namespace rootstock
