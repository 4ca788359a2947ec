// METRICS.md: the series that engine events move.
#include "coordinator/engine/testing/toy_model.h"
#include "coordinator/engine/testing/world.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

double Disconnects(const World& world, const std::string& phase) {
  return world.Metric("client_disconnects_total{phase=\"" + phase + "\"}");
}

TEST(EngineMetrics, CancelsCountByPhaseAndTakeUntilTheirPagesAreFree) {
  World world;
  const auto queued = world.Generate(World::Ask("base", {5, 6, 7}, 30));  // no group yet
  world.Run();
  EXPECT_EQ(world.Metric("queue_tokens{tenant_class=\"default\"}"), 3);
  world.engine->Cancel(queued.number);
  world.Run();
  EXPECT_EQ(Disconnects(world, "queued"), 1);
  EXPECT_EQ(world.Metric("queue_tokens{tenant_class=\"default\"}"), 0);
  EXPECT_EQ(world.Metric("cancel_latency_seconds_count"), 0);  // it held nothing

  FakeGroup& group = world.AddGroup("g");
  const auto prefill = world.Generate(World::Ask("base", std::vector<int32_t>(60, 5), 30));
  world.Run();
  EXPECT_EQ(world.Metric("queue_tokens{tenant_class=\"default\"}"), 0);
  world.engine->Cancel(prefill.number);
  world.executor.Advance(absl::Milliseconds(20));
  world.Run();
  EXPECT_EQ(Disconnects(world, "prefill"), 1);
  EXPECT_EQ(world.Metric("cancel_latency_seconds_count"), 0);
  group.CompleteStep();
  world.Run();
  EXPECT_EQ(world.Metric("cancel_latency_seconds_count"), 0);  // the second step names it too
  world.executor.Advance(absl::Milliseconds(30));
  group.CompleteStep();
  world.Run();
  EXPECT_EQ(world.Metric("cancel_latency_seconds_count"), 1);
  EXPECT_DOUBLE_EQ(world.Metric("cancel_latency_seconds_sum"), 0.05);

  GenerateRequest two = World::Ask("base", {5}, 30);
  two.n = 2;
  const auto decode = world.Generate(std::move(two));
  world.Run();
  group.CompleteStep();
  world.Run();
  world.engine->Cancel(decode.number);
  world.Settle();
  EXPECT_EQ(Disconnects(world, "decode"), 1);
  EXPECT_EQ(world.Metric("cancel_latency_seconds_count"), 2);  // once a request
  world.engine->Cancel(decode.number);
  world.Settle();
  EXPECT_EQ(Disconnects(world, "decode"), 1);
  world.ExpectClean();
}

TEST(EngineMetrics, ACancelledRequestsPagesGoWithItsGroup) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const auto sent = world.Generate(World::Ask("base", {5}, 30));
  world.Run();
  world.engine->Cancel(sent.number);
  world.Run();
  EXPECT_EQ(world.Metric("cancel_latency_seconds_count"), 0);
  group.Die();
  world.Run();
  EXPECT_EQ(world.Metric("cancel_latency_seconds_count"), 1);
}

TEST(EngineMetrics, TokensAfterAStopStringThatIsFoundLateCountNowhere) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  GenerateRequest r = World::Ask("base", {5, 6}, 60);
  r.n = 2;
  const auto sent = world.Generate(std::move(r));
  sent.heard->stop_string_after = 3;
  world.Run();
  while (sent.heard->tokens[0].size() < 6 || sent.heard->tokens[1].size() < 6) {
    ASSERT_FALSE(sent.heard->done);
    world.executor.Advance(absl::Milliseconds(10));
    group.CompleteStep();
    world.Run();
  }
  sent.heard->on_stop(0);
  sent.heard->on_stop(1);
  world.Settle();
  EXPECT_TRUE(sent.heard->status.ok());
  EXPECT_EQ(world.Metric("output_tokens_total{tenant_class=\"default\"}"), 6);
  EXPECT_EQ(world.Metric("request_output_tokens_sum"), 6);
  EXPECT_EQ(world.Metric("inter_token_latency_seconds_count"), 4);
  EXPECT_EQ(world.Metric("time_per_output_token_seconds_count{tenant_class=\"default\"}"), 1);
  world.ExpectClean();
}

TEST(EngineMetrics, EvictedPagesCountByOwnerAndReason) {
  World world;
  world.AddGroup("g", 12);
  uint32_t pages = 0, last = 0;
  Digest digest;
  for (int i = 0; i < 10; ++i) {
    digest = world.Add("a" + std::to_string(i));
    last = toy::FootprintOf(digest).pages;
    pages += last;
    world.Generate(World::Ask("a" + std::to_string(i), {5, 6}, 8));
    world.Settle();
  }
  EXPECT_GT(world.Metric("page_evictions_total{owner=\"adapter\",reason=\"pressure\"}"), 0);
  EXPECT_EQ(world.Metric("page_evictions_total{owner=\"adapter\",reason=\"pressure\"}"),
            pages - world.StatusOf("g").pages_adapter);
  const auto left = [&](const std::string& reason) {
    return world.Metric("page_evictions_total{owner=\"adapter\",reason=\"" + reason + "\"}");
  };
  EXPECT_EQ(left("unload"), 0);
  world.engine->Unload(digest, [](const TierBytes&) {});
  world.Settle();
  EXPECT_EQ(left("unload"), last);
  world.Generate(World::Ask("a9", {5, 6}, 8));
  world.Settle();
  world.Unregister("a9");
  world.Settle();
  EXPECT_EQ(left("unload"), last);
  EXPECT_EQ(left("retire"), last);
  EXPECT_EQ(world.Metric("adapter_evictions_total{reason=\"retire\",tier=\"device\"}"), 2);

  EXPECT_EQ(world.Metric("page_evictions_total{owner=\"kv\",reason=\"pressure\"}"), 0);
  for (int i = 0; i < 4; ++i) world.Generate(World::Ask("base", {5, 6, i}, 24));
  world.Settle();
  EXPECT_GT(world.Metric("preemptions_total{reason=\"pages\"}"), 0);
  EXPECT_GT(world.Metric("page_evictions_total{owner=\"kv\",reason=\"pressure\"}"), 0);
  world.ExpectClean();
}

TEST(EngineMetrics, LoadsCountByTheirResult) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const std::vector<std::pair<std::string, absl::Status>> results = {
      {"timeout", absl::DeadlineExceededError("ten seconds")},
      {"corrupt", absl::DataLossError("flipped bit")},
      {"no_space", absl::ResourceExhaustedError("full")},
      {"io_error", absl::UnavailableError("away")}};
  for (const auto& [result, why] : results) {
    group.FailFetch(world.Add(result), why);
    world.Generate(World::Ask(result, {5}, 2));
    world.Settle();
    EXPECT_EQ(world.Metric("adapter_loads_total{result=\"" + result + "\",source=\"coordinator\"}"),
              1)
        << result;
  }
}

}  // namespace
}  // namespace rootstock
