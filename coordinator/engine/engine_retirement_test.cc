// Contents that lost their last name: FAULTS F2, F5.
#include <memory>
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

// Its coordinator restarted too: nobody remembers that it was to be unloaded.
TEST(EngineRetirement, F2WhatLostItsNameWhileTheGroupWasAwayLeavesItsDisks) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest kept = world.Add("kept"), gone = world.Add("gone");
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
