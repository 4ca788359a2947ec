// Who may wait: FAULTS H6 for the queue itself.
#include "coordinator/engine/queue_bound.h"
#include "coordinator/engine/testing/world.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

// How many of `tries` were accepted; the others were told to come again.
int Accepted(World& world, const std::string& model, int tries, std::vector<World::Sent>* all) {
  int accepted = 0;
  for (int i = 0; i < tries; ++i) {
    auto sent = world.TryGenerate(World::Ask(model, {5, 6}, 3));
    world.Run();
    if (sent.ok()) {
      ++accepted;
      all->push_back(*std::move(sent));
    } else {
      EXPECT_EQ(ReasonOf(sent.status()), Reason::kQueueFull);
      EXPECT_EQ(GetRetryAfterMs(sent.status()), 1000);
    }
  }
  return accepted;
}

TEST(EngineQueue, H6ThoseWhoWaitForAStalledAdapterLeavePlacesToAllOthers) {
  World world({.max_queued = 16});
  FakeGroup& group = world.AddGroup("g");
  const Digest slow = world.Add("slow");
  for (const char* name : {"resident", "next"}) world.Add(name);
  std::vector<World::Sent> all;
  EXPECT_EQ(Accepted(world, "resident", 1, &all), 1);
  world.Settle();
  group.HoldFetch(slow, true);
  EXPECT_EQ(Accepted(world, "slow", 20, &all), 4);
  EXPECT_EQ(Accepted(world, "next", 1, &all), 1);
  EXPECT_EQ(Accepted(world, "resident", 8, &all), 8);
  EXPECT_EQ(Accepted(world, "base", 2, &all), 2);
  world.Settle();
  EXPECT_EQ(world.engine->Status().queued, 4u);
  group.HoldFetch(slow, false);
  world.Settle();
  for (const auto& sent : all) world.ExpectRight(sent);
  EXPECT_EQ(world.engine->Status().queued, 0u);
  world.ExpectClean();
}

TEST(EngineQueue, WhatIsOnADeviceMayFillTheQueue) {
  World world({.limits = {.max_model_len = 256, .max_num_seqs = 1, .max_num_batched_tokens = 32},
               .max_queued = 16});
  world.AddGroup("g");
  world.Add("a");
  std::vector<World::Sent> all;
  EXPECT_EQ(Accepted(world, "a", 1, &all), 1);
  world.Settle();
  all.push_back(world.Generate(World::Ask("base", {5}, 100)));
  world.Run();
  EXPECT_EQ(Accepted(world, "a", 20, &all), 16);
  world.Settle();
  for (const auto& sent : all) world.ExpectRight(sent);
  world.ExpectClean();
}

// One whose adapter had to be found first: it counts from its first moment, and so does its time.
TEST(EngineQueue, APlaceIsKeptWhileTheModelIsLookedFor) {
  World world({.max_queued = 2});
  world.AddGroup("g");
  GenerateRequest later = World::Ask("later", {5, 6}, 3);
  later.place = *world.engine->Enter(later);
  EXPECT_EQ(world.engine->Status().queued, 1u);
  EXPECT_EQ(world.Metric("queue_requests{tenant_class=\"default\"}"), 1);
  const auto base = world.Generate(World::Ask("base", {5}, 3));
  EXPECT_EQ(ReasonOf(world.engine->Enter(World::Ask("other", {5}, 1)).status()),
            Reason::kQueueFull);
  world.executor.Advance(absl::Seconds(5));
  world.Add("later");
  auto sent = world.Generate(later);
  later.place.reset();
  sent.request.place.reset();
  EXPECT_EQ(world.engine->Status().queued, 2u);
  world.Settle();
  world.ExpectRight(base);
  world.ExpectRight(sent);
  EXPECT_EQ(world.engine->Status().queued, 0u);
  EXPECT_GE(world.Metric(
                "time_to_first_token_seconds_sum{adapter_state=\"cold\",tenant_class=\"default\"}"),
            5);
  world.ExpectClean();
}

TEST(QueueBound, CountsThoseWhoseAdaptersAreOnNoDevice) {
  int told = 0;
  const auto queue = std::make_shared<QueueBound>(8, [&](int more) { told += more; });
  std::vector<std::shared_ptr<QueuePlace>> places;
  const auto enter = [&](const std::string& adapter, int tries) {
    int accepted = 0;
    for (int i = 0; i < tries; ++i) {
      auto place = queue->Enter(adapter, absl::UnixEpoch());
      if (!place.ok()) continue;
      ++accepted;
      places.push_back(*std::move(place));
    }
    return accepted;
  };
  EXPECT_EQ(enter("a", 4), 2);  // of the four such places, as many as it leaves
  EXPECT_EQ(enter("b", 4), 1);
  EXPECT_EQ(enter("c", 4), 1);
  EXPECT_EQ(enter("d", 4), 0);
  queue->SetResident(1, "a", true);
  queue->SetResident(2, "a", true);
  EXPECT_EQ(enter("d", 4), 1);
  queue->Forget(1);
  EXPECT_EQ(enter("a", 1), 1);
  queue->SetResident(2, "a", false);  // on none any more: six of four places
  EXPECT_EQ(enter("a", 1), 0);
  EXPECT_EQ(enter("", 4), 2);
  EXPECT_EQ(queue->waiting(), 8u);
  EXPECT_FALSE(queue->Check().ok());
  places[0]->Rename("");
  places.erase(places.begin(), places.begin() + 6);  // only the base's are left
  EXPECT_EQ(enter("a", 4), 2);
  places.clear();
  EXPECT_EQ(queue->waiting(), 0u);
  EXPECT_EQ(told, 0);
}

}  // namespace
}  // namespace rootstock
