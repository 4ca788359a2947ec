// Tiers, the window of fetches, and loads beside steps: FAULTS F8, F10, G1, H5–H7, J3.
#include "common/base/status.h"
#include "coordinator/engine/testing/toy_model.h"
#include "coordinator/engine/testing/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using testing::ElementsAre;

double Loads(const World& world, const std::string& source) {
  return world.Metric("adapter_loads_total{result=\"ok\",source=\"" + source + "\"}");
}
double Lookups(const World& world, const std::string& result) {
  return world.Metric("adapter_lookup_total{result=\"" + result + "\"}");
}
double Resident(const World& world, const std::string& tier,
                const char* what = "adapters_resident") {
  return world.Metric(std::string(what) + "{group=\"g\",tier=\"" + tier + "\"}");
}

// Fills the device with others, so that `a` leaves it.
void Push(World& world, int others) {
  for (int i = 0; i < others; ++i) {
    world.Generate(World::Ask("b" + std::to_string(i), {5, 6}, 3));
    world.Settle();
  }
}

TEST(EngineTiers, AnAdapterComesFromTheNearestTierThatHasIt) {
  World world;
  FakeGroup& group = world.AddGroup("g", 12);
  const Digest a = world.Add("a");
  for (int i = 0; i < 8; ++i) group.PutInStore(world.Add("b" + std::to_string(i)));
  const auto ask = [&] {
    const auto sent = world.Generate(World::Ask("a", {5, 6}, 3));
    world.Settle();
    world.ExpectRight(sent);
  };
  ask();
  EXPECT_EQ(group.last_fetch_bytes, std::string("content-of-a").size());
  EXPECT_EQ(Loads(world, "coordinator"), 1);
  EXPECT_EQ(Lookups(world, "coordinator_fetch"), 1);
  ask();
  EXPECT_EQ(Lookups(world, "device_hit"), 1);
  Push(world, 8);
  EXPECT_EQ(Loads(world, "object"), 8);
  EXPECT_EQ(Lookups(world, "object_fetch"), 8);
  ASSERT_FALSE(group.residents().contains(a));
  ask();
  EXPECT_EQ(Loads(world, "host"), 1);
  EXPECT_EQ(Lookups(world, "host_hit"), 1);
  Push(world, 8);
  group.host_room = 4;
  Push(world, 8);  // all but four leave the host
  EXPECT_FALSE(group.on_host().contains(a));
  EXPECT_GT(world.Metric("adapter_evictions_total{reason=\"pressure\",tier=\"host\"}"), 3);
  const double loads = Loads(world, "disk"), lookups = Lookups(world, "disk_hit");
  ask();
  EXPECT_EQ(Loads(world, "disk"), loads + 1);
  EXPECT_EQ(Lookups(world, "disk_hit"), lookups + 1);
  EXPECT_EQ(world.Metric("time_to_first_token_seconds_count{adapter_state=\"warm\","
                         "tenant_class=\"default\"}") +
                world.Metric("time_to_first_token_seconds_count{adapter_state=\"hot\","
                             "tenant_class=\"default\"}") +
                world.Metric("time_to_first_token_seconds_count{adapter_state=\"cold\","
                             "tenant_class=\"default\"}"),
            4 + 24);
  world.ExpectClean();
}

TEST(EngineTiers, TheSeriesAndTheStatusShowEachTier) {
  World world;
  FakeGroup& group = world.AddGroup("g", 40);
  group.host_room = 2;
  for (int i = 0; i < 3; ++i) world.Add("b" + std::to_string(i));
  Push(world, 3);
  EXPECT_EQ(Resident(world, "device"), 3);
  EXPECT_EQ(Resident(world, "host"), 2);
  EXPECT_EQ(Resident(world, "disk"), 3);
  EXPECT_EQ(Resident(world, "host", "adapter_resident_bytes"), 2 * 4096);
  EXPECT_EQ(Resident(world, "disk", "adapter_resident_bytes"), 3 * 1000);
  EXPECT_EQ(Resident(world, "device", "adapter_resident_bytes"),
            world.StatusOf("g").pages_adapter * 4096);
  EXPECT_EQ(world.StatusOf("g").cached.size(), 5u);
  // The disk outlives the processes, the rest does not.
  group.Die();
  world.Run();
  EXPECT_TRUE(world.StatusOf("g").cached.empty());
  EXPECT_EQ(Resident(world, "disk"), 0);
  ASSERT_TRUE(group.Attach(*world.engine, /*keep_adapters=*/false).ok());
  world.Run();
  EXPECT_EQ(Resident(world, "device"), 0);
  EXPECT_EQ(Resident(world, "host"), 0);
  EXPECT_EQ(Resident(world, "disk"), 3);
  EXPECT_EQ(world.StatusOf("g").cached.size(), 3u);
}

TEST(EngineTiers, FetchesGoOutInQueueOrderWithinTheWindow) {
  WorldOptions options;
  options.pool.prefetch_bytes = 3 * 2 * 4096;  // three pages, on two ranks
  World world(options);
  FakeGroup& group = world.AddGroup("g", 200);
  uint32_t pages = 0;
  for (int i = 0; i < 20; ++i) {
    const Digest digest = world.Add("a" + std::to_string(i));
    pages += toy::FootprintOf(digest).pages;
    world.Generate(World::Ask("a" + std::to_string(i), {5, 6}, 3));
  }
  ASSERT_GT(pages, 20u);
  world.Run();
  EXPECT_GE(group.prefetches, 1u);
  EXPECT_LE(group.prefetches, 3u);  // no adapter is smaller than a page
  for (int rounds = 0; group.prefetches < 20; ++rounds) {
    ASSERT_LT(rounds, 60);
    ASSERT_LE(group.pending_fetches(), 3u);
    group.CompleteAll();
    world.Run();
  }
  world.Settle();
  EXPECT_EQ(group.loads, 20u);
  world.ExpectClean();
}

TEST(EngineTiers, H6AStalledFetchHoldsUpNobodyElse) {
  WorldOptions options;
  options.pool.prefetch_bytes = 1;  // one at a time
  World world(options);
  FakeGroup& group = world.AddGroup("g");
  const Digest slow = world.Add("slow");
  world.Add("quick");
  group.HoldFetch(slow, true);
  // More than a group's line takes, all older.
  std::vector<World::Sent> stalled;
  for (int i = 0; i < 100; ++i)
    stalled.push_back(world.Generate(World::Ask("slow", {5, i % 40}, 3)));
  const auto quick = world.Generate(World::Ask("quick", {5}, 4));
  const auto base = world.Generate(World::Ask("base", {5}, 4));
  world.Settle();
  world.ExpectRight(base);
  EXPECT_FALSE(quick.heard->done);
  for (int i = 0; i < 3; ++i) {
    world.executor.Advance(absl::Seconds(1));
    world.Settle();
  }
  world.ExpectRight(quick);
  EXPECT_FALSE(stalled[0].heard->done);
  // Those that come now are placed as well, and served with the rest.
  stalled.push_back(world.Generate(World::Ask("slow", {7}, 3)));
  group.HoldFetch(slow, false);
  world.Settle();
  for (const auto& sent : stalled) world.ExpectRight(sent);
  EXPECT_EQ(group.loads, 2u);
  world.ExpectClean();
}

TEST(EngineTiers, F8ContentThatVanishesBetweenFetchAndLoadIsFetchedAgain) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest a = world.Add("a");
  group.FailLoad(a, absl::NotFoundError("blob: no such file"));
  const auto sent = world.Generate(World::Ask("a", {5, 6}, 4));
  world.Settle();
  world.ExpectRight(sent);
  EXPECT_EQ(group.prefetches, 2u);
  EXPECT_EQ(group.loads, 2u);
  world.ExpectClean();
}

TEST(EngineTiers, F8ContentThatIsGoneForGoodFailsItsRequestsAlone) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest a = world.Add("a");
  group.disk_room = group.host_room = 0;  // nothing stays
  const auto sent = world.Generate(World::Ask("a", {5, 6}, 4));
  world.Run();
  group.CompleteAll();
  world.Run();
  group.FailFetch(a, MakeError(absl::StatusCode::kNotFound, Reason::kIoError, "blob", "x", "gone"));
  const auto base = world.Generate(World::Ask("base", {5}, 4));
  group.FailLoad(a, absl::NotFoundError("no copy is left"));
  world.Settle();
  EXPECT_EQ(sent.heard->status.code(), absl::StatusCode::kDataLoss);
  world.ExpectRight(base);
  world.ExpectClean();
}

TEST(EngineTiers, LoadsRunBesideSteps) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  world.Add("a");
  const auto base = world.Generate(World::Ask("base", {5}, 20));
  world.Run();
  const auto cold = world.Generate(World::Ask("a", {5}, 4));
  world.Run();
  ASSERT_EQ(group.pending_others(), 1u);
  group.CompleteOther(0);  // the Prefetch
  world.Run();
  ASSERT_EQ(group.pending_others(), 1u);  // the Load, which stays under way
  for (int i = 0; i < 10; ++i) {
    group.CompleteStep();
    world.Run();
  }
  EXPECT_GE(base.heard->tokens.at(0).size(), 10u);
  EXPECT_FALSE(cold.heard->tokens.contains(0));
  world.Settle();
  world.ExpectRight(base);
  world.ExpectRight(cold);
  world.ExpectClean();
}

// A Prefetch would cost it steps; a group without streams sends it, so that Steps may follow.
TEST(EngineTiers, WhatIsOnTheHostsIsLoadedAtOnceBesideOthers) {
  World world;
  FakeGroup& group = world.AddGroup("g", 12);
  const Digest a = world.Add("a");
  for (int i = 0; i < 8; ++i) world.Add("b" + std::to_string(i));
  world.Generate(World::Ask("a", {5, 6}, 3));
  world.Settle();
  Push(world, 8);
  ASSERT_FALSE(group.residents().contains(a));
  ASSERT_TRUE(group.on_host().contains(a));
  const auto base = world.Generate(World::Ask("base", {5}, 14));
  world.Run();
  ASSERT_EQ(group.pending_steps(), 2u);
  uint64_t prefetches = group.prefetches;
  const uint64_t loads = group.loads;
  auto cold = world.Generate(World::Ask("a", {5, 6}, 3));
  world.Run();
  while (group.pending_others() > 0) {  // Drops that make room
    group.CompleteOther(0);
    world.Run();
  }
  EXPECT_EQ(group.loads, loads + 1);  // before any step has ended
  world.Settle();
  world.ExpectRight(base);
  world.ExpectRight(cold);
  EXPECT_EQ(group.prefetches, prefetches);
  EXPECT_GE(Loads(world, "host"), 1);
  Push(world, 8);
  prefetches = group.prefetches;
  // Evicted from the hosts and the disk before the Load comes, or the disk has spoilt it.
  for (const absl::Status& why :
       {absl::NotFoundError("no copy is left"),
        MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "digest", "x", "spoilt"),
        MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, "path", "x", "I/O error")}) {
    const auto busy = world.Generate(World::Ask("base", {5}, 14));
    world.Run();
    group.FailLoad(a, why);
    cold = world.Generate(World::Ask("a", {5, 6}, 3));
    world.Settle();
    world.ExpectRight(busy);
    world.ExpectRight(cold);
    EXPECT_EQ(group.prefetches, prefetches + 1);
    Push(world, 8);
    prefetches = group.prefetches;
  }
  world.ExpectClean();
}

// Where adapters come and go a load finds its pages free; where all fit, none leaves.
TEST(EngineTiers, UnderPressurePagesAreFreeBeforeALoadAsksForThem) {
  World world;
  FakeGroup& group = world.AddGroup("g", 51);
  const auto use = [&](int i) {
    const std::string name = "b" + std::to_string(i);
    const auto sent = world.Generate(World::Ask(name, {5, 6}, 2));
    world.Settle();
    world.ExpectRight(sent);
  };
  for (int i = 0; i < 60; ++i) world.Add("b" + std::to_string(i));
  for (int i = 0; i < 60; ++i) {
    use(i);
    if (i < 10) {
      EXPECT_EQ(group.drops, 0u);
    }
    if (i >= 30) {
      EXPECT_GE(world.StatusOf("g").pages_free, 2u) << i;
    }
  }
  EXPECT_GT(group.drops, 20u);
  const uint64_t drops = group.drops;
  world.executor.Advance(absl::Seconds(2));
  for (int n = 0; n < 5; ++n) {
    for (int i = 57; i < 60; ++i) use(i);
  }
  EXPECT_EQ(group.drops, drops);
  world.ExpectClean();
}

TEST(EngineTiers, QueueTimeIsSplitByWhatItWasFor) {
  World world({.limits = {.max_model_len = 64, .max_num_seqs = 1, .max_num_batched_tokens = 32}});
  FakeGroup& group = world.AddGroup("g");
  const Digest a = world.Add("a");
  group.HoldFetch(a, true);
  world.Generate(World::Ask("a", {5}, 3));
  world.Run();
  world.executor.Advance(absl::Milliseconds(300));
  const auto first = world.Generate(World::Ask("base", {5}, 40));  // takes the only slot
  world.Run();
  group.HoldFetch(a, false);
  group.CompleteOther(0);
  world.Run();
  group.CompleteOther(0);  // the Load: now it waits for the slot
  world.Run();
  world.executor.Advance(absl::Milliseconds(200));
  world.Settle();
  EXPECT_NEAR(world.Metric("queue_wait_reason_seconds_sum{reason=\"load\"}"), 0.3, 1e-6);
  EXPECT_NEAR(world.Metric("queue_wait_reason_seconds_sum{reason=\"pages\"}"), 0.2, 1e-6);
  EXPECT_NEAR(world.Metric("queue_wait_seconds_sum{tenant_class=\"default\"}"), 0.5, 1e-6);
  EXPECT_EQ(world.Metric("queue_wait_reason_seconds_count{reason=\"load\"}"), 1);
}

}  // namespace
}  // namespace rootstock
