// --lora-sharding auto as the engine follows it: a choice when an adapter comes, kept while it
// stays.
#include "coordinator/engine/testing/toy_model.h"
#include "coordinator/engine/testing/world.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

WorldOptions Auto() {
  WorldOptions o;
  o.ways = toy::BothWays;
  return o;
}

// Registers adapters until one takes `pages` replicated; its name.
std::string AddOfPages(World& world, uint32_t pages, const std::string& prefix) {
  for (int i = 0;; ++i) {
    const std::string name = prefix + std::to_string(i);
    if (toy::FootprintOf(world.Add(name)).pages == pages) return name;
  }
}

void Use(World& world, const std::string& name) {
  const auto sent = world.Generate(World::Ask(name, {5, 6}, 4));
  world.Settle();
  world.ExpectRight(sent);
}

TEST(EngineSharding, AdaptersAreReplicatedUntilPagesAreFewAndShardedFromThenOn) {
  World world(Auto());
  FakeGroup& group = world.AddGroup("g", 65);
  Use(world, AddOfPages(world, 4, "first"));
  EXPECT_EQ(group.loads, 1u);
  EXPECT_EQ(group.sharded_loads, 0u);
  // 10 more leave 20 of 64 pages; one that comes then would leave a quarter.
  for (int i = 1; i < 11; ++i) Use(world, AddOfPages(world, 4, "more" + std::to_string(i) + "-"));
  EXPECT_EQ(group.sharded_loads, 0u);
  EXPECT_EQ(world.StatusOf("g").pages_free, 20u);
  const std::string last = AddOfPages(world, 4, "last");
  Use(world, last);
  EXPECT_EQ(group.sharded_loads, 1u);
  EXPECT_EQ(world.StatusOf("g").pages_free, 18u);
  Use(world, last);
  EXPECT_EQ(group.loads, 12u);
  world.ExpectClean();
}

TEST(EngineSharding, AnAttachTakesOverAdaptersOfEitherWay) {
  World world(Auto());
  FakeGroup& group = world.AddGroup("g", 36);
  for (int i = 0; i < 9; ++i) Use(world, AddOfPages(world, 4, "a" + std::to_string(i) + "-"));
  const uint64_t loads = group.loads, sharded = group.sharded_loads;
  EXPECT_GT(sharded, 0u);
  EXPECT_LT(sharded, loads);
  const size_t residents = group.residents().size();
  group.Die(absl::UnavailableError("the coordinator went"));
  world.RestartEngine();
  ASSERT_TRUE(group.Attach(*world.engine).ok());
  world.Settle();
  EXPECT_EQ(world.StatusOf("g").adapters.size(), residents);
  EXPECT_EQ(group.loads, loads);
  world.ExpectClean();
}

// A fixed policy does not keep what another one left.
TEST(EngineSharding, AnAttachDropsAdaptersOfTheWayThatThePolicyForbids) {
  World world(Auto());
  FakeGroup& group = world.AddGroup("g", 36);
  for (int i = 0; i < 9; ++i) Use(world, AddOfPages(world, 4, "a" + std::to_string(i) + "-"));
  const size_t residents = group.residents().size();
  group.Die(absl::UnavailableError("the coordinator went"));
  world.SetWays([](const AdapterContent& content) -> absl::StatusOr<AdapterWays> {
    return AdapterWays{{toy::ShardedFootprintOf(content.digest)}, 16, 2};
  });
  world.RestartEngine();
  ASSERT_TRUE(group.Attach(*world.engine).ok());
  world.Settle();
  EXPECT_LT(group.residents().size(), residents);
  EXPECT_FALSE(group.residents().empty());
  const uint64_t replicated = group.loads - group.sharded_loads;
  Use(world, AddOfPages(world, 3, "b"));
  EXPECT_EQ(group.loads - group.sharded_loads, replicated);
  world.ExpectClean();
}

// What fits only while its adapter is fully sharded is not accepted: the adapter may come back
// replicated.
TEST(EngineSharding, ARequestMustFitBesideTheLargerWay) {
  World world(Auto());
  FakeGroup& group = world.AddGroup("g", 65);
  const std::string name = AddOfPages(world, 4, "a");
  // 60 pages of 4 tokens are left beside the replicated one, 62 beside the other.
  const auto fits = world.Generate(World::Ask(name, {5, 6}, 239));
  const auto too_long = world.Generate(World::Ask(name, {5, 6}, 245));
  world.Settle();
  world.ExpectRight(fits);
  EXPECT_FALSE(too_long.heard->status.ok());
  EXPECT_EQ(group.sharded_loads, 0u);
  world.ExpectClean();
}

// In a pool of which it would take more than an eighth, an adapter is sharded from the start.
TEST(EngineSharding, ALargeAdapterIsShardedAtOnce) {
  World world(Auto());
  FakeGroup& group = world.AddGroup("g", 24);
  const std::string name = AddOfPages(world, 4, "a");
  Use(world, name);
  EXPECT_EQ(group.sharded_loads, 1u);
  const auto fits = world.Generate(World::Ask(name, {5, 6}, 79));
  world.Settle();
  world.ExpectRight(fits);
  world.ExpectClean();
}

}  // namespace
}  // namespace rootstock
