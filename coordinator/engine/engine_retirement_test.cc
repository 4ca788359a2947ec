// Contents that lost their last name: FAULTS F2, F5.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/engine/testing/world.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

// What is registered again while the last requests of before run is taken from nobody.
TEST(EngineRetirement, WhatHasANameAgainKeepsNobodyBack) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest a = world.Add("a", "text");
  const auto before = world.Generate(World::Ask("a", {5, 6}, 30));
  for (int i = 0; i < 5; ++i) {
    world.Run();
    group.CompleteAll();
  }
  ASSERT_TRUE(world.registry->Unregister("a", "default").ok());
  const auto freed = std::make_shared<std::vector<TierBytes>>();
  world.engine->Unload(a, [freed](const TierBytes& bytes) { freed->push_back(bytes); });
  world.Run();
  world.Add("again", "text");
  world.Run();
  EXPECT_TRUE(freed->empty());
  const auto after = world.Generate(World::Ask("again", {5, 6}, 2));
  world.Run();
  EXPECT_EQ(*freed, (std::vector<TierBytes>{TierBytes()}));
  for (int i = 0; i < 6; ++i) {
    group.CompleteAll();
    world.Run();
  }
  EXPECT_TRUE(after.heard->done);
  EXPECT_FALSE(before.heard->done);
  world.Settle();
  world.ExpectRight(before);
  world.ExpectRight(after);
  EXPECT_EQ(group.drops, 0u);
  EXPECT_EQ(group.loads, 1u);
  world.ExpectClean();
}

// Also when nobody has asked for it since.
TEST(EngineRetirement, WhatHasANameAgainStaysWhenTheLastOfBeforeEnds) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest a = world.Add("a", "text");
  const auto before = world.Generate(World::Ask("a", {5, 6}, 30));
  for (int i = 0; i < 5; ++i) {
    world.Run();
    group.CompleteAll();
  }
  ASSERT_TRUE(world.registry->Unregister("a", "default").ok());
  int freed = 0;
  world.engine->Unload(a, [&](const TierBytes& bytes) {
    ++freed;
    EXPECT_EQ(bytes, TierBytes());
  });
  world.Run();
  world.Add("again", "text");
  world.Settle();
  world.ExpectRight(before);
  EXPECT_EQ(freed, 1);
  EXPECT_EQ(group.drops, 0u);
  EXPECT_TRUE(group.residents().contains(a));
  // An unload that was asked for is carried out, whatever its names.
  const auto last = world.Generate(World::Ask("again", {5, 6}, 30));
  world.Run();
  world.engine->Unload(a, [&](const TierBytes& bytes) {
    ++freed;
    EXPECT_GT(bytes.device, 0u);
  });
  world.Settle();
  world.ExpectRight(last);
  EXPECT_EQ(freed, 2);
  EXPECT_FALSE(group.residents().contains(a));
  world.ExpectClean();
}

// Its coordinator restarted too: nobody remembers that it was to be unloaded.
TEST(EngineRetirement, F2WhatLostItsNameWhileTheGroupWasAwayLeavesItsDisks) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest kept = world.Add("kept");
  world.Add("gone");
  for (const char* name : {"kept", "gone"}) world.Generate(World::Ask(name, {5, 6}, 3));
  world.Settle();
  group.Die();
  world.Run();
  ASSERT_TRUE(world.registry->Unregister("gone", "default").ok());
  world.RestartEngine();
  ASSERT_TRUE(group.Attach(*world.engine, /*keep_adapters=*/false).ok());
  world.Settle();
  EXPECT_EQ(group.fetched(), (std::set<Digest>{kept}));
  EXPECT_EQ(world.StatusOf("g").cached.size(), 1u);
  world.ExpectClean();
}

// Their Drops, each a pause between steps, do not stand before the group's first step.
TEST(EngineRetirement, F2ManyThatLostTheirNamesLeaveAFewAtATime) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  std::pair<Digest, std::string> last;  // their turn comes in the digests' order
  for (int i = 0; i < 100; ++i) {
    last = std::max(last, std::pair(world.Add("a" + std::to_string(i)), "a" + std::to_string(i)));
    world.Generate(World::Ask("a" + std::to_string(i), {5}, 1));
    world.Settle();
  }
  ASSERT_EQ(group.fetched().size(), 100u);
  group.Die();
  world.Run();
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(world.registry->Unregister("a" + std::to_string(i), "default").ok());
  }
  const uint64_t drops = group.drops;
  ASSERT_TRUE(group.Attach(*world.engine, /*keep_adapters=*/false).ok());
  world.Run();
  EXPECT_EQ(group.pending_others(), 16u);
  world.Add(last.second);  // it has a name again before its turn
  world.Settle();
  EXPECT_EQ(group.fetched(), (std::set<Digest>{last.first}));
  EXPECT_EQ(group.drops, drops + 99);
  world.ExpectClean();
}

// An Unload that its group's loss cut short is made up for when it comes back; of a group that is
// forgotten nothing is remembered.
TEST(EngineRetirement, F1AnUnloadThatALossCutShortIsRememberedWithTheGroup) {
  for (const absl::Duration away : {absl::Minutes(9), absl::Minutes(11)}) {
    World world;
    FakeGroup& group = world.AddGroup("g");
    const Digest a = world.Add("a");
    world.Generate(World::Ask("a", {5, 6}, 3));
    world.Settle();
    world.engine->Unload(a, [](const TierBytes&) {});
    world.Run();  // its Drop is under way
    ASSERT_EQ(group.pending_others(), 1u);
    group.Die();
    world.Run();
    group.ForgetDrops();
    world.executor.Advance(away);
    world.Run();
    ASSERT_TRUE(group.Attach(*world.engine).ok());
    world.Settle();
    EXPECT_EQ(group.residents().contains(a), away > absl::Minutes(10));
    world.ExpectClean();
  }
}

// Its replay finds what the nodes still have; then it leaves.
TEST(EngineRetirement, F2WhatARequestStillHoldsStaysForItsReplay) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  world.Add("a");
  const auto sent = world.Generate(World::Ask("a", {5, 6}, 30));
  for (int i = 0; i < 5; ++i) {
    world.Run();
    group.CompleteAll();
  }
  world.Unregister("a");
  for (const bool keep : {true, false}) {
    group.Die();
    world.Run();
    const uint64_t drops = group.drops;
    ASSERT_TRUE(group.Attach(*world.engine, keep).ok());
    for (int i = 0; i < 4; ++i) {
      world.Run();
      group.CompleteAll();
    }
    EXPECT_EQ(group.drops, drops);
  }
  world.Settle();
  world.ExpectRight(sent);
  EXPECT_EQ(world.Metric("adapter_loads_total{result=\"ok\",source=\"coordinator\"}"), 1);
  EXPECT_EQ(world.Metric("adapter_loads_total{result=\"ok\",source=\"disk\"}"), 1);
  EXPECT_TRUE(group.fetched().empty());
  EXPECT_TRUE(group.residents().empty());
  world.ExpectClean();
}

// Nobody orders it to leave this group any more: its retirement was carried out elsewhere.
TEST(EngineRetirement, F2WhatAnEndedRequestStillHoldsLeavesLater) {
  World world;
  FakeGroup& away = world.AddGroup("away");
  world.Add("a");
  world.Generate(World::Ask("a", {5, 6}, 3));
  world.Settle();
  away.Die();
  world.Run();
  FakeGroup& group = world.AddGroup("g");
  const auto sent = world.Generate(World::Ask("a", {5, 6}, 30));
  for (int i = 0; i < 5; ++i) {
    world.Run();
    group.CompleteAll();
  }
  world.Run();
  world.Unregister("a");
  world.engine->Cancel(sent.number);
  world.Run();
  ASSERT_TRUE(sent.heard->done);
  ASSERT_GT(group.pending_steps(), 0u);  // with rows of it
  for (const bool keep : {true, false}) {
    ASSERT_TRUE(away.Attach(*world.engine, keep).ok());
    world.Run();
    if (keep) away.Die();
    world.Run();
  }
  EXPECT_EQ(away.fetched().size(), 1u);
  world.Settle();
  world.executor.Advance(absl::Seconds(1));
  world.Settle();
  EXPECT_TRUE(away.fetched().empty());
  EXPECT_TRUE(away.residents().empty());
  EXPECT_TRUE(group.fetched().empty());
  world.ExpectClean();
}

// A large attach report goes on in what follows.
TEST(EngineRetirement, F2WhatTheNodesTellOfLaterLeavesThemToo) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest kept = world.Add("kept");
  std::vector<TierChange> late = {{{kept, Tier::kDisk, 10}, true},
                                  {{Sha256Of("gone"), Tier::kDisk, 10}, true}};
  group.tamper = [&](Completion& c) {
    for (const TierChange& change : std::exchange(late, {})) c.tier_changes.push_back(change);
  };
  world.Generate(World::Ask("base", {5}, 2));
  world.Settle();
  EXPECT_EQ(group.drops, 1u);
  world.ExpectClean();
}

}  // namespace
}  // namespace rootstock
