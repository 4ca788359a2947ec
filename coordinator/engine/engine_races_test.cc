// Loads, names and versions that meet each other, and memory over many of them: FAULTS F3, F4, F7,
// F11, I3, I5.
#include "common/base/status.h"
#include "coordinator/engine/testing/toy_model.h"
#include "coordinator/engine/testing/world.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

TEST(EngineRaces, F3RequestsThatRaceForOneAdapterLoadItOnce) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  world.Add("a", "the content");
  world.Add("b", "the content");  // another name of it
  std::vector<World::Sent> all;
  const auto ask = [&] {
    for (const char* name : {"a", "b"}) all.push_back(world.Generate(World::Ask(name, {5, 6}, 9)));
    world.Run();
  };
  ask();
  ask();
  ASSERT_EQ(group.pending_others(), 1u);
  ask();  // while it is fetched
  group.CompleteOther(0);
  world.Run();
  ask();  // while it is loaded
  world.Settle();
  ask();
  world.Settle();
  for (const auto& sent : all) world.ExpectRight(sent);
  EXPECT_EQ(group.prefetches, 1u);
  EXPECT_EQ(group.loads, 1u);
  world.ExpectClean();
}

TEST(EngineRaces, F4WhoWaitsForANameThatIsDeletedIsServedAndTheNextOwnerMeetsNoneOfIt) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest old = world.Add("a", "v1");
  group.HoldFetch(old, true);
  std::vector<World::Sent> waiting;
  for (int i = 0; i < 5; ++i) waiting.push_back(world.Generate(World::Ask("a", {5, i}, 4)));
  world.Run();
  ASSERT_TRUE(world.registry->Unregister("a", "default").ok());
  int unloaded = 0;
  world.engine->Unload(old, [&](const TierBytes&) { ++unloaded; });
  world.Settle();
  EXPECT_EQ(world.TryGenerate(World::Ask("a", {5}, 4)).status().code(),
            absl::StatusCode::kNotFound);
  const Digest fresh = world.Add("a", "v2");
  const auto next = world.Generate(World::Ask("a", {5, 6}, 4));
  world.Settle();
  world.ExpectRight(next);
  EXPECT_EQ(next.heard->accepted.adapter, fresh);
  EXPECT_EQ(unloaded, 0);
  EXPECT_FALSE(waiting[0].heard->done);
  group.HoldFetch(old, false);
  world.Settle();
  for (const auto& sent : waiting) world.ExpectRight(sent);
  EXPECT_EQ(unloaded, 1);
  EXPECT_EQ(group.residents(), (std::set<Digest>{fresh}));
  EXPECT_EQ(group.fetched(), (std::set<Digest>{fresh}));
  world.ExpectClean();
}

TEST(EngineRaces, F7TheLiveVersionServesUntilTheNextIsReadyAndBeyond) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest one = world.Add("a", "v1");
  std::vector<World::Sent> right = {world.Generate(World::Ask("a", {5, 6}, 60))};
  for (int i = 0; i < 6; ++i) {
    world.Run();
    group.CompleteAll();
  }
  ASSERT_TRUE(world.registry->RegisterDirectory("a", "v2", "default", /*new_version=*/true).ok());
  const Digest two = Sha256Of("v2");
  group.FailFetch(two, absl::UnavailableError("the store is down"));
  const auto failed = world.Generate(World::Ask("a", {5, 6}, 4));
  right.push_back(world.Generate(World::Ask("a@1", {5, 6}, 4)));
  world.Settle();
  EXPECT_TRUE(absl::IsUnavailable(failed.heard->status));
  EXPECT_TRUE(group.residents().contains(one));
  group.HoldFetch(two, true);
  right.push_back(world.Generate(World::Ask("a", {5, 7}, 4)));  // waits for it
  right.push_back(world.Generate(World::Ask("a@1", {5, 7}, 4)));
  world.Settle();
  EXPECT_TRUE(right[3].heard->done);
  EXPECT_FALSE(right[2].heard->done);
  group.HoldFetch(two, false);
  world.Settle();
  right.push_back(world.Generate(World::Ask("a@1", {5, 8}, 4)));
  world.Settle();
  for (const auto& sent : right) world.ExpectRight(sent);
  EXPECT_EQ(right[2].heard->accepted.adapter, two);
  EXPECT_EQ(group.loads, 2u);  // the first one never left
  world.ExpectClean();
}

TEST(EngineRaces, F11ANameWhoseLoadsFailCanBeRemovedAndGivenAgain) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest bad = world.Add("a", "bad");
  for (const bool in_fetch : {true, false}) {
    const absl::Status why =
        MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "blob", "x", "flipped bit");
    in_fetch ? group.FailFetch(bad, why) : group.FailLoad(bad, why);
    const auto failed = world.Generate(World::Ask("a", {5, 6}, 4));
    world.Settle();
    EXPECT_EQ(ReasonOf(failed.heard->status), Reason::kDigestMismatch);
  }
  ASSERT_TRUE(world.registry->Unregister("a", "default").ok());
  int unloaded = 0;
  world.engine->Unload(bad, [&](const TierBytes&) { ++unloaded; });
  world.Settle();
  EXPECT_EQ(unloaded, 1);
  EXPECT_TRUE(group.fetched().empty());
  world.Add("a", "good");
  const auto again = world.Generate(World::Ask("a", {5, 6}, 4));
  world.Settle();
  world.ExpectRight(again);
  EXPECT_EQ(again.heard->accepted.adapter, Sha256Of("good"));
  world.ExpectClean();
}

// As many stay as their pages allow, whatever their number: of 1 to 4 pages each.
TEST(EngineRaces, I3I5AdaptersOfAnySizesTakeTheirPagesAndNoMore) {
  World world;
  FakeGroup& group = world.AddGroup("g", 61);
  uint32_t pages = 0;
  std::set<uint32_t> sizes;
  for (int i = 0; i < 60; ++i) {
    const std::string name = "a" + std::to_string(i);
    const uint32_t own = toy::FootprintOf(world.Add(name)).pages;
    const auto sent = world.Generate(World::Ask(name, {5, 6}, 2));  // a page of KV
    world.Settle();
    world.ExpectRight(sent);
    pages += own;
    sizes.insert(own);
    if (pages < 60) {
      EXPECT_EQ(group.drops, 0u);
      EXPECT_EQ(world.StatusOf("g").pages_adapter, pages);
    }
  }
  EXPECT_EQ(sizes.size(), 4u);
  EXPECT_GT(pages, 120u);
  EXPECT_GT(group.drops, 20u);
  EXPECT_GT(world.StatusOf("g").pages_adapter, 50u);
  world.ExpectClean();
}

}  // namespace
}  // namespace rootstock
