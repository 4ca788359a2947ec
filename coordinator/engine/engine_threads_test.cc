// The engine on its own threads: clients, a dying group and registrations at once.
#include <thread>

#include "coordinator/engine/testing/toy_model.h"
#include "coordinator/engine/testing/world.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

bool Await(const std::function<bool()>& condition) {
  const absl::Time end = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// Completes what a group has until told to stop; now and then the group dies and comes back.
std::thread Serve(World& world, FakeGroup& group, const std::atomic<bool>& stop, int lives) {
  return std::thread([&world, &group, &stop, lives] {
    int rounds = 0, died = 0;
    while (!stop) {
      if (!group.CompleteAll()) std::this_thread::yield();
      if (++rounds % 400 == 0 && died < lives) {
        ++died;
        group.Die();
        EXPECT_TRUE(group.Attach(*world.engine, died % 2 == 0).ok());
      }
    }
  });
}

TEST(EngineThreads, StreamsAreExactWhileEverythingHappensAtOnce) {
  WorldOptions options;
  options.threads = true;
  World world(options);
  for (int i = 0; i < 4; ++i) world.Add("a" + std::to_string(i));
  world.AddGroup("g1", 40);
  world.AddGroup("g2", 40);
  std::atomic<bool> stop = false;
  std::thread one = Serve(world, *world.groups["g1"], stop, 2);
  std::thread two = Serve(world, *world.groups["g2"], stop, 0);
  constexpr int kEach = 60;
  std::vector<std::vector<World::Sent>> sent(3);
  std::vector<std::thread> clients;
  for (int c = 0; c < 3; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < kEach; ++i) {
        const int which = (i + c) % 5;
        GenerateRequest r =
            World::Ask(which == 4 ? "base" : "a" + std::to_string(which), {5, i % 40}, 12);
        r.n = i % 7 == 0 ? 2 : 1;
        r.deadline = i % 11 == 0 ? absl::Now() + kPatience : absl::InfiniteFuture();
        sent[c].push_back(world.Generate(std::move(r)));
        if (i % 5 == 0) world.engine->Cancel(sent[c].back().number);
        if (i % 9 == 0) sent[c].back().heard->on_stop(0);
        if (i % 20 == 0) world.engine->Status();
      }
    });
  }
  for (std::thread& t : clients) t.join();
  EXPECT_TRUE(
      Await([&] { return world.engine->Status().queued + world.engine->Status().running == 0; }));
  EXPECT_TRUE(world.engine->Drain(absl::Now() + kPatience).ok());
  stop = true;
  one.join();
  two.join();
  for (const auto& list : sent) {
    for (size_t i = 0; i < list.size(); ++i) {
      ASSERT_TRUE(list[i].heard->done);
      if (i % 5 != 0 && i % 9 != 0) world.ExpectRight(list[i]);
    }
  }
  for (const auto& [name, group] : world.groups) EXPECT_TRUE(group->violations.empty());
}

// PROTOCOL §2, D = 1, by the clock: each result is held back for 50 ms after its step could begin.
TEST(EngineThreads, AResultDelayedBy50MsSeesTheNextPlanArriveFirst) {
  using std::chrono::steady_clock;
  constexpr auto kDelay = std::chrono::milliseconds(50);
  WorldOptions options;
  options.threads = true;
  World world(options);
  FakeGroup& group = world.AddGroup("g");
  GenerateRequest r = World::Ask("base", {5, 6, 7}, 40);
  r.ignore_eos = false;
  r.sampling.seed = 1000;  // eos ends the answer, which nobody can foresee
  size_t tokens = 0;
  while (tokens < 4 || tokens > 12) {
    tokens = toy::Expected({5, 6, 7}, 0, ++*r.sampling.seed, 0, 40, false).size();
  }
  const auto sent = world.Generate(std::move(r));
  steady_clock::time_point free_at = steady_clock::now();
  for (size_t step = 0; !sent.heard->done || group.pending_steps() > 0; ++step) {
    ASSERT_TRUE(Await([&] { return group.step_times().size() > step; }));
    std::this_thread::sleep_until(std::max(group.step_times()[step].received, free_at) + kDelay);
    group.CompleteStep();
    free_at = *group.step_times()[step].completed;
  }
  const std::vector<FakeGroup::StepTimes> times = group.step_times();
  ASSERT_EQ(times.size(), tokens + 1);
  for (size_t i = 0; i + 1 < times.size(); ++i) {
    EXPECT_GE(*times[i].completed - times[i].received, kDelay) << "step " << i;
    EXPECT_LT(times[i + 1].received, *times[i].completed) << "step " << i;
  }
  world.ExpectRight(sent);
  EXPECT_EQ(group.rows, tokens + 1);
  EXPECT_EQ(group.most_wasted_rows, 1u);
  EXPECT_TRUE(group.violations.empty());
}

TEST(EngineThreads, AnEngineMayStopAtAnyMoment) {
  for (int round = 0; round < 5; ++round) {
    WorldOptions options;
    options.threads = true;
    World world(options);
    world.Add("a");
    FakeGroup& group = world.AddGroup("g");
    std::atomic<bool> stop = false;
    std::thread server = Serve(world, group, stop, 0);
    std::vector<World::Sent> all;
    for (int i = 0; i < 20; ++i) {
      all.push_back(world.Generate(World::Ask(i % 2 == 0 ? "a" : "base", {5}, 100)));
    }
    for (int i = 0; i < round * 50; ++i) std::this_thread::yield();
    world.engine.reset();
    stop = true;
    server.join();
    for (const auto& sent : all) {
      EXPECT_TRUE(sent.heard->done);
      EXPECT_EQ(sent.heard->closes, 1);
    }
  }
}

TEST(TaskQueues, RunInOrderAndTimersNotBeforeTheirTime) {
  const Clock clock = MonotonicClock();
  const auto queue = ThreadTaskQueues(clock)("test");
  std::vector<int> order;
  std::atomic<bool> done = false;
  const absl::Time due = clock() + absl::Milliseconds(20);
  absl::Time ran;
  queue->PostAt(due, [&] {
    ran = clock();
    order.push_back(3);
    done = true;
  });
  queue->Post([&] { order.push_back(1); });
  queue->Post([&] { order.push_back(2); });
  ASSERT_TRUE(Await([&] { return done.load(); }));
  queue->Stop();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  EXPECT_GE(ran, due);
  queue->Post([&] { order.push_back(4); });
  EXPECT_EQ(order.size(), 3u);
}

}  // namespace
}  // namespace rootstock
