// Adapters under load: FAULTS C, F, G, H and K as far as they live in the engine.
#include "common/base/status.h"
#include "coordinator/engine/testing/toy_model.h"
#include "coordinator/engine/testing/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using testing::HasSubstr;

WorldOptions Sized(uint32_t seqs) {
  WorldOptions o;
  o.limits.max_num_seqs = seqs;
  return o;
}

TEST(EngineAdapters, C1C2AdaptersAndBaseInOneBatchKeepTheirAnswers) {
  World world(Sized(16));
  FakeGroup& group = world.AddGroup("g", 200);
  std::vector<World::Sent> all;
  for (int i = 0; i < 6; ++i) world.Add("a" + std::to_string(i));
  for (int i = 0; i < 14; ++i) {
    all.push_back(world.Generate(
        World::Ask(i % 7 == 6 ? "base" : "a" + std::to_string(i % 7), {5, 6, 7}, 12)));
  }
  world.Settle();
  for (const auto& sent : all) world.ExpectRight(sent);
  EXPECT_EQ(group.most_adapters_in_a_step, 6u);
  EXPECT_NE(all[0].heard->tokens[0], all[1].heard->tokens[0]);
  EXPECT_EQ(all[0].heard->tokens[0], all[7].heard->tokens[0]);
  world.ExpectClean();
}

TEST(EngineAdapters, C3QuickAlternationOverFewPagesCorruptsNothing) {
  World world;
  world.AddGroup("g", 12);
  for (int i = 0; i < 5; ++i) world.Add("a" + std::to_string(i));
  std::vector<World::Sent> all;
  for (int i = 0; i < 60; ++i) {
    all.push_back(world.Generate(World::Ask("a" + std::to_string(i % 5), {5, 6, i % 40}, 8)));
    if (i % 3 == 0) world.Settle();
  }
  world.Settle();
  for (const auto& sent : all) world.ExpectRight(sent);
  EXPECT_GT(world.groups["g"]->drops, 5u);
  world.ExpectClean();
}

TEST(EngineAdapters, F1UnregisterFreesTheDevicePages) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest digest = world.Add("a");
  world.Generate(World::Ask("a", {5}, 3));
  world.Settle();
  EXPECT_GT(world.StatusOf("g").pages_adapter, 0u);
  world.Unregister("a");
  world.Settle();
  EXPECT_EQ(world.StatusOf("g").pages_adapter, 0u);
  EXPECT_EQ(world.StatusOf("g").pages_free, 63u);
  EXPECT_FALSE(group.residents().contains(digest));
  EXPECT_EQ(world.Metric("adapter_evictions_total{reason=\"retire\",tier=\"device\"}"), 1);
  world.ExpectClean();
}

TEST(EngineAdapters, F1WhatIsLoadedAfterUnregisterLeavesWithItsLastRequest) {
  World world;
  const Digest digest = world.Add("a");
  const auto waited = world.Generate(World::Ask("a", {5, 6}, 5));
  world.Unregister("a");
  world.Run();
  FakeGroup& group = world.AddGroup("g", 14);
  world.Settle();
  world.ExpectRight(waited);
  EXPECT_EQ(world.StatusOf("g").pages_adapter, 0u);
  EXPECT_TRUE(world.StatusOf("g").adapters.empty());
  EXPECT_FALSE(group.fetched().contains(digest));
  EXPECT_EQ(group.loads, 1u);
  world.ExpectClean();
}

TEST(EngineAdapters, F1APreemptedRequestsReloadLeavesToo) {
  World world;
  FakeGroup& group = world.AddGroup("g", 14);
  std::vector<World::Sent> all;
  for (int i = 0; i < 3; ++i) all.push_back(world.Generate(World::Ask("base", {5, 6, 7, 8}, 20)));
  world.Add("a");
  all.push_back(world.Generate(World::Ask("a", {5, 6}, 20)));
  for (int i = 0; i < 100 && group.loads == 0; ++i) {
    world.Run();
    group.CompleteAll();
  }
  world.Run();
  world.Unregister("a");
  world.Settle();
  for (const auto& sent : all) world.ExpectRight(sent);
  EXPECT_EQ(world.StatusOf("g").pages_adapter, 0u);
  EXPECT_TRUE(world.StatusOf("g").adapters.empty());
  EXPECT_TRUE(group.fetched().empty());
  world.ExpectClean();
}

TEST(EngineAdapters, F5UnloadBetweenAdmissionAndFirstStepServesWhatWasAccepted) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest digest = world.Add("a");
  const auto sent = world.Generate(World::Ask("a", {5, 6}, 5));
  world.Unregister("a");
  EXPECT_EQ(world.TryGenerate(World::Ask("a", {5}, 1)).status().code(),
            absl::StatusCode::kNotFound);
  world.Settle();
  world.ExpectRight(sent);
  EXPECT_EQ(world.registry->FindDigest(digest), nullptr);
  EXPECT_TRUE(group.violations.empty());
}

TEST(EngineAdapters, UnloadUnderRunningRequestsDrainsFirst) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  world.Add("a");
  const auto sent = world.Generate(World::Ask("a", {5, 6}, 30));
  for (int i = 0; i < 5; ++i) {
    world.Run();
    group.CompleteAll();
  }
  world.Run();
  world.Unregister("a");
  world.Run();
  EXPECT_EQ(group.drops, 0u);
  world.Settle();
  world.ExpectRight(sent);
  EXPECT_EQ(group.drops, 1u);
  EXPECT_EQ(world.StatusOf("g").pages_adapter, 0u);
  world.ExpectClean();
}

TEST(EngineAdapters, F10NewContentUnderAnOldNameMeetsNothingOld) {
  World world;
  world.AddGroup("g");
  world.Add("a", "v1");
  const auto first = world.Generate(World::Ask("a", {5, 6}, 6));
  world.Settle();
  world.Unregister("a");
  world.Add("a", "v2");
  const auto second = world.Generate(World::Ask("a", {5, 6}, 6));
  world.Settle();
  world.ExpectRight(first);
  world.ExpectRight(second);
  EXPECT_NE(first.heard->tokens[0], second.heard->tokens[0]);
  EXPECT_EQ(second.heard->accepted.adapter, Sha256Of("v2"));
  world.ExpectClean();
}

TEST(EngineAdapters, F11G1AFailedFetchOrLoadFailsItsRequestsOnlyAndTheNameStaysUsable) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest digest = world.Add("a");
  const absl::Status bad =
      MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "blob", "x", "flipped bit");
  for (const bool load : {false, true}) {
    load ? group.FailLoad(digest, bad) : group.FailFetch(digest, bad);
    const auto base = world.Generate(World::Ask("base", {5}, 20));
    const auto one = world.Generate(World::Ask("a", {5}, 5));
    const auto two = world.Generate(World::Ask("a", {6}, 5));
    world.Settle();
    world.ExpectRight(base);
    for (const auto& sent : {one, two}) {
      EXPECT_EQ(ReasonOf(sent.heard->status), Reason::kDigestMismatch);
      EXPECT_THAT(std::string(sent.heard->status.message()),
                  HasSubstr("adapter=a: could not be loaded: blob=x: flipped bit"));
      EXPECT_EQ(sent.heard->closes, 1);
    }
    world.ExpectClean();
  }
  const auto again = world.Generate(World::Ask("a", {5}, 5));
  world.Settle();
  world.ExpectRight(again);
  EXPECT_EQ(world.Metric("adapter_loads_total{result=\"corrupt\",source=\"coordinator\"}"), 2);
}

TEST(EngineAdapters, G4AnAdapterThatDoesNotFitTheGroupIsRefusedWithTheReason) {
  WorldOptions options;
  options.ways = [](const AdapterContent&) -> absl::StatusOr<AdapterWays> {
    return InvalidField(Reason::kRowTooLong, "row", "9000", "a page holds 4096 bytes");
  };
  World world(options);
  world.AddGroup("g");
  world.Add("a");
  const auto sent = world.Generate(World::Ask("a", {5}, 5));
  const auto base = world.Generate(World::Ask("base", {5}, 5));
  world.Settle();
  EXPECT_EQ(ReasonOf(sent.heard->status), Reason::kRowTooLong);
  world.ExpectRight(base);
}

TEST(EngineAdapters, H1H2MoreAdaptersThanFitPlusBaseRowsWaitTheirTurn) {
  World world(Sized(16));
  FakeGroup& group = world.AddGroup("g", 16);
  std::vector<World::Sent> all;
  for (int i = 0; i < 10; ++i) {
    world.Add("a" + std::to_string(i));
    all.push_back(world.Generate(World::Ask("a" + std::to_string(i), {5, 6}, 6)));
    all.push_back(world.Generate(World::Ask("base", {5, i}, 6)));
  }
  world.Settle();
  for (const auto& sent : all) world.ExpectRight(sent);
  EXPECT_TRUE(group.violations.empty());
  world.ExpectClean();
}

TEST(EngineAdapters, H3AnAdapterStaysWhileItsPromptIsInChunks) {
  World world;
  FakeGroup& group = world.AddGroup("g", 60);
  std::vector<int32_t> prompt(150, 9);
  world.Add("a");
  for (int i = 0; i < 8; ++i) world.Add("b" + std::to_string(i));
  std::vector<World::Sent> all = {world.Generate(World::Ask("a", prompt, 4))};
  for (int i = 0; i < 8; ++i) {
    all.push_back(world.Generate(World::Ask("b" + std::to_string(i), {5}, 4)));
    world.Run();
    group.CompleteAll();
  }
  world.Settle();
  for (const auto& sent : all) world.ExpectRight(sent);
  world.ExpectClean();
}

TEST(EngineAdapters, H5AResidentAdaptersStreamDoesNotStarveAColdOne) {
  World world(Sized(4));
  FakeGroup& group = world.AddGroup("g", 10);
  world.Add("hot");
  world.Add("cold");
  std::vector<World::Sent> all;
  std::optional<World::Sent> cold;
  int rounds_until_served = 0;
  for (int i = 0; i < 200; ++i) {
    all.push_back(world.Generate(World::Ask("hot", {5, 6}, 6)));
    if (i == 20) cold = world.Generate(World::Ask("cold", {5, 6}, 3));
    world.Run();
    group.CompleteAll();
    if (cold && !cold->heard->done) ++rounds_until_served;
  }
  EXPECT_TRUE(cold->heard->done);
  EXPECT_LT(rounds_until_served, 120);
  world.Settle();
  for (const auto& sent : all) world.ExpectRight(sent);
  world.ExpectClean();
}

TEST(EngineAdapters, H6H7ASlowAdapterBlocksNeitherTheBaseNorOthers) {
  World world(Sized(4));
  FakeGroup& group = world.AddGroup("g");
  const Digest slow = world.Add("slow");
  world.Add("quick");
  group.HoldFetch(slow, true);
  // More of them, and older, than there are slots.
  std::vector<World::Sent> waiting;
  for (int i = 0; i < 30; ++i) waiting.push_back(world.Generate(World::Ask("slow", {5, i}, 3)));
  const auto base = world.Generate(World::Ask("base", {5}, 8));
  const auto quick = world.Generate(World::Ask("quick", {5}, 8));
  world.Settle();
  world.ExpectRight(base);
  world.ExpectRight(quick);
  EXPECT_FALSE(waiting[0].heard->done);
  group.HoldFetch(slow, false);
  world.Settle();
  for (const auto& sent : waiting) world.ExpectRight(sent);
  EXPECT_EQ(group.loads, 2u);
  world.ExpectClean();
}

TEST(EngineAdapters, K1K2K3AnswersAndMetricsNameTheAdapterAndItsResidency) {
  World world;
  world.AddGroup("g");
  const Digest digest = world.Add("a");
  const auto sent = world.Generate(World::Ask("a", {5}, 3));
  EXPECT_EQ(sent.heard->accepted.model, "a");
  EXPECT_EQ(sent.heard->accepted.adapter, digest);
  const auto base = world.Generate(World::Ask("base", {5}, 3));
  EXPECT_EQ(base.heard->accepted.model, "base");
  EXPECT_FALSE(base.heard->accepted.adapter.has_value());
  world.Settle();
  // Idle by now, and still shown.
  EXPECT_EQ(world.Metric("adapters_resident{group=\"g\",tier=\"device\"}"), 1);
  EXPECT_EQ(world.StatusOf("g").adapters.size(), 1u);
  EXPECT_EQ(
      world.Metric(
          "time_to_first_token_seconds_count{adapter_state=\"cold\",tenant_class=\"default\"}"),
      1);
  EXPECT_EQ(
      world.Metric(
          "time_to_first_token_seconds_count{adapter_state=\"base\",tenant_class=\"default\"}"),
      1);
  world.Generate(World::Ask("a", {5}, 3));
  world.Settle();
  EXPECT_EQ(world.Metric("adapter_lookup_total{result=\"device_hit\"}"), 1);
  EXPECT_EQ(world.Metric("adapter_lookup_total{result=\"coordinator_fetch\"}"), 1);
}

TEST(EngineAdapters, K4RunningAndWaitingAreDifferentSets) {
  World world(Sized(1));
  world.AddGroup("g");
  world.Generate(World::Ask("base", {5}, 30));
  world.Generate(World::Ask("base", {5}, 30));
  world.Generate(World::Ask("base", {5}, 30));
  world.Run();
  EXPECT_EQ(world.engine->Status().running, 1u);
  EXPECT_EQ(world.engine->Status().queued, 2u);
  EXPECT_EQ(world.Metric("running_requests{tenant_class=\"default\"}"), 1);
}

}  // namespace
}  // namespace rootstock
