// Unload and pins: FAULTS F1, F2, F5, I3; PROTOCOL §5.
#include "common/base/status.h"
#include "coordinator/engine/testing/toy_model.h"
#include "coordinator/engine/testing/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using testing::HasSubstr;

struct Freed {
  std::optional<TierBytes> bytes;
  int calls = 0;
};
std::shared_ptr<Freed> Unload(World& world, const Digest& digest) {
  auto freed = std::make_shared<Freed>();
  world.engine->Unload(digest, [freed](const TierBytes& bytes) {
    freed->bytes = bytes;
    ++freed->calls;
  });
  return freed;
}

TEST(EngineUnload, F1F2FreesEveryTierOfEveryGroupAndReportsTheBytes) {
  World world;
  world.AddGroup("g1");
  world.AddGroup("g2");
  const Digest a = world.Add("a");
  for (int i = 0; i < 40; ++i) world.Generate(World::Ask("a", {5, 6}, 4));
  world.Settle();
  uint64_t device = 0, places = 0;
  for (const auto& [name, group] : world.groups) {
    device += world.StatusOf(name).pages_adapter * 2 * 4096;
    places += group->fetched().size();
  }
  ASSERT_GE(places, 1u);
  const auto freed = Unload(world, a);
  world.Settle();
  ASSERT_EQ(freed->calls, 1);
  EXPECT_EQ(freed->bytes->device, device);
  EXPECT_EQ(freed->bytes->host, places * 4096);
  EXPECT_EQ(freed->bytes->disk, places * 1000);
  for (const auto& [name, group] : world.groups) {
    EXPECT_EQ(world.StatusOf(name).pages_adapter, 0u);
    EXPECT_TRUE(world.StatusOf(name).cached.empty());
    EXPECT_TRUE(group->fetched().empty());
    EXPECT_TRUE(group->on_host().empty());
  }
  EXPECT_EQ(world.Metric("adapter_evictions_total{reason=\"retire\",tier=\"disk\"}"), places);
  // Registered still.
  const auto again = world.Generate(World::Ask("a", {5, 6}, 4));
  world.Settle();
  world.ExpectRight(again);
  world.ExpectClean();
}

// A store that stands still holds up nobody who takes an adapter away.
TEST(EngineUnload, F1ASlowFetchThatNobodyWantsAnyMoreIsNotWaitedFor) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest a = world.Add("a");
  group.HoldFetch(a, true);
  const auto sent = world.Generate(World::Ask("a", {5, 6}, 4));
  world.Settle();
  world.engine->Cancel(sent.number);
  world.Settle();
  ASSERT_TRUE(sent.heard->done);
  world.Unregister("a");
  const auto freed = Unload(world, a);
  world.Settle();
  EXPECT_EQ(freed->calls, 0);
  world.executor.Advance(absl::Seconds(2));
  world.Settle();
  EXPECT_EQ(freed->calls, 1);
  const auto again = Unload(world, a);
  world.Settle();
  EXPECT_EQ(again->calls, 1);
  group.HoldFetch(a, false);
  world.Settle();
  EXPECT_TRUE(group.fetched().empty());
  EXPECT_TRUE(group.on_host().empty());
  EXPECT_EQ(freed->calls, 1);
  world.ExpectClean();
}

TEST(EngineUnload, F5DrainsWhatWasAcceptedAndKeepsLaterOnesBack) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest a = world.Add("a");
  const auto before = world.Generate(World::Ask("a", {5, 6}, 30));
  for (int i = 0; i < 5; ++i) {
    world.Run();
    group.CompleteAll();
  }
  const auto freed = Unload(world, a);
  world.Run();
  const auto after = world.Generate(World::Ask("a", {5, 6}, 3));
  world.Run();
  for (int i = 0; i < 5; ++i) {
    group.CompleteAll();
    world.Run();
  }
  EXPECT_EQ(freed->calls, 0);
  EXPECT_FALSE(after.heard->tokens.contains(0));
  EXPECT_EQ(group.drops, 0u);
  world.Settle();
  EXPECT_EQ(freed->calls, 1);
  world.ExpectRight(before);
  world.ExpectRight(after);
  EXPECT_EQ(group.loads, 2u);
  world.ExpectClean();
}

TEST(EngineUnload, WhatIsNowhereAndWhatIsBeingFetchedAreUnloadedToo) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest a = world.Add("a");
  const auto nowhere = Unload(world, a);
  world.Settle();
  EXPECT_EQ(nowhere->calls, 1);
  EXPECT_EQ(*nowhere->bytes, TierBytes());
  const auto sent = world.Generate(World::Ask("a", {5, 6}, 3));
  world.Run();
  world.engine->Cancel(sent.number);  // while it is fetched
  world.Run();
  const auto fetched = Unload(world, a);
  world.Settle();
  EXPECT_EQ(fetched->calls, 1);
  EXPECT_EQ(fetched->bytes->device, 0u);
  EXPECT_EQ(fetched->bytes->disk, 1000u);
  EXPECT_TRUE(group.fetched().empty());
  world.ExpectClean();
}

TEST(EngineUnload, TwoAtOnceAreBothAnswered) {
  World world;
  world.AddGroup("g");
  const Digest a = world.Add("a");
  world.Generate(World::Ask("a", {5, 6}, 3));
  world.Run();
  const auto one = Unload(world, a);
  world.Generate(World::Ask("a", {5, 6}, 3));
  const auto two = Unload(world, a);
  world.Settle();
  EXPECT_EQ(one->calls, 1);
  EXPECT_EQ(two->calls, 1);
  world.ExpectClean();
}

TEST(EngineUnload, AGroupThatIsLostUnloadsWhenItComesBack) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest a = world.Add("a");
  world.Generate(World::Ask("a", {5, 6}, 3));
  world.Settle();
  const auto freed = Unload(world, a);
  world.Run();  // the Drop is sent
  group.Die();
  world.Run();
  EXPECT_EQ(freed->calls, 1);
  group.ForgetDrops();
  ASSERT_TRUE(group.Attach(*world.engine).ok());
  world.Settle();
  EXPECT_TRUE(group.residents().empty());
  EXPECT_TRUE(group.fetched().empty());
  EXPECT_EQ(world.StatusOf("g").pages_adapter, 0u);
  world.ExpectClean();
}

TEST(EngineUnload, IsAnsweredWhenTheEngineEnds) {
  auto world = std::make_unique<World>();
  const Digest a = world->Add("a");
  world->Generate(World::Ask("a", {5, 6}, 3));  // no group will ever serve it
  const auto freed = Unload(*world, a);
  world->Run();
  EXPECT_EQ(freed->calls, 0);
  world.reset();
  EXPECT_EQ(freed->calls, 1);
}

void Ticks(World& world, int n) {
  for (int i = 0; i < n; ++i) {
    world.executor.Advance(absl::Seconds(1));
    world.Settle();
  }
}

// The fake reports KV, or a Load, on pages that the ranks still hold.
TEST(EngineUnload, PagesOfADropThatTheGroupRefusesStayTaken) {
  World world;
  FakeGroup& group = world.AddGroup("g", 12);
  const Digest a = world.Add("a");
  world.Generate(World::Ask("a", {5, 6}, 3));
  world.Settle();
  const uint32_t pages = toy::FootprintOf(a).pages;
  group.FailDrops(a, absl::FailedPreconditionError("is being loaded"));
  const auto freed = Unload(world, a);
  world.Settle();
  std::vector<World::Sent> all;
  for (int i = 0; i < 12; ++i) all.push_back(world.Generate(World::Ask("base", {5, i}, 14)));
  world.Settle();
  Ticks(world, 2);
  for (const auto& sent : all) world.ExpectRight(sent);
  EXPECT_EQ(world.StatusOf("g").pages_adapter, pages);
  EXPECT_EQ(freed->calls, 0);
  const auto again = world.Generate(World::Ask("a", {5, 6}, 3));  // waits until it has left
  world.Settle();
  EXPECT_FALSE(again.heard->done);
  EXPECT_GE(group.drops, 3u);
  EXPECT_LE(group.drops, 4u);  // one a tick
  group.FailDrops(a, absl::OkStatus());
  Ticks(world, 2);
  EXPECT_EQ(freed->calls, 1);
  EXPECT_EQ(freed->bytes->device, pages * 2 * 4096);
  world.ExpectRight(again);
  world.ExpectClean();
}

TEST(EngineUnload, ADiskThatFailsKeepsNoPages) {
  World world;
  FakeGroup& group = world.AddGroup("g", 12);
  const Digest a = world.Add("a");
  world.Generate(World::Ask("a", {5, 6}, 3));
  world.Settle();
  group.FailDrops(a, absl::InternalError("the disk is read-only"), /*on_disk=*/true);
  const auto freed = Unload(world, a);
  world.Settle();
  EXPECT_EQ(freed->calls, 0);
  Ticks(world, 2);
  ASSERT_EQ(freed->calls, 1);
  EXPECT_EQ(freed->bytes->device, toy::FootprintOf(a).pages * 2 * 4096);
  EXPECT_EQ(freed->bytes->host, FakeGroup::kHostBytes);
  EXPECT_EQ(freed->bytes->disk, 0u);
  EXPECT_EQ(group.fetched().count(a), 1u);
  world.ExpectClean();
}

TEST(EnginePins, APinnedAdapterIsLoadedUnaskedAndStaysUnderPressure) {
  World world;
  FakeGroup& group = world.AddGroup("g", 20);
  const Digest pin = world.Add("pin");
  world.engine->SetPins({{pin, ""}});
  world.Settle();
  EXPECT_TRUE(group.residents().contains(pin));
  EXPECT_TRUE(group.pinned().contains(pin));
  for (int i = 0; i < 12; ++i) world.Add("b" + std::to_string(i));
  std::vector<World::Sent> all;
  for (int i = 0; i < 60; ++i) {
    all.push_back(world.Generate(World::Ask("b" + std::to_string(i % 12), {5, 6}, 20)));
    if (i % 5 == 0) world.Settle();
    EXPECT_TRUE(group.residents().contains(pin));
  }
  world.Settle();
  for (const auto& sent : all) world.ExpectRight(sent);
  EXPECT_GT(group.drops, 5u);
  EXPECT_EQ(group.loads, group.drops + group.residents().size());
  // Unpinned it is as any other.
  world.engine->SetPins({});
  for (int i = 0; i < 12; ++i) world.Generate(World::Ask("b" + std::to_string(i), {5, 6}, 20));
  world.Settle();
  EXPECT_FALSE(group.residents().contains(pin));
  EXPECT_FALSE(group.pinned().contains(pin));
  world.ExpectClean();
}

TEST(EnginePins, PinsOfOneGroupAndThoseBeforeTheAttach) {
  World world;
  const Digest everywhere = world.Add("x"), there = world.Add("y");
  world.engine->SetPins({{everywhere, ""}, {there, "g2"}});
  FakeGroup& one = world.AddGroup("g1");
  FakeGroup& two = world.AddGroup("g2");
  world.Settle();
  EXPECT_EQ(one.residents(), (std::set<Digest>{everywhere}));
  EXPECT_EQ(two.residents(), (std::set<Digest>{everywhere, there}));
  two.Die();
  world.Run();
  ASSERT_TRUE(two.Attach(*world.engine, /*keep_adapters=*/false).ok());
  world.Settle();
  EXPECT_EQ(two.residents(), (std::set<Digest>{everywhere, there}));
}

TEST(EnginePins, MoreThanThePoolLessItsFloorsIsRefusedWithTheArithmetic) {
  WorldOptions options;
  options.pool.kv_floor = 0.25;
  options.pool.adapter_floor = 0.1;
  World world(options);
  world.AddGroup("g", 41);
  std::vector<AdapterPin> pins;
  uint32_t pages = 0;
  while (pages <= 26) {  // 40 less 10 and 4
    const Digest digest = world.Add("a" + std::to_string(pins.size()));
    EXPECT_TRUE(world.engine->CheckPins(pins).ok());
    pins.push_back({digest, ""});
    pages += toy::FootprintOf(digest).pages;
  }
  const absl::Status refused = world.engine->CheckPins(pins);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(refused), Reason::kTooLarge);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("they take " + std::to_string(pages) +
                        " pages of group 'g', which has 40 and keeps 10 for KV and 4"));
  pins.back().group = "another";
  EXPECT_TRUE(world.engine->CheckPins(pins).ok());
}

TEST(EnginePins, WhatNoLongerFitsBesideThemIsRefusedAndWhatRanBeforeEndsFirst) {
  World world;
  FakeGroup& group = world.AddGroup("g", 20);  // 19 pages of 4 tokens
  const Digest pin = world.Add("pin");
  const uint32_t own = toy::FootprintOf(pin).pages;
  const auto before = world.Generate(World::Ask("base", {5, 6}, 75));  // all pages
  world.Run();
  world.engine->SetPins({{pin, ""}});
  world.Run();
  EXPECT_EQ(group.prefetches, 0u);  // it would make the request hopeless
  const auto after = world.Generate(World::Ask("base", {5, 6}, 75));
  world.Settle();
  world.ExpectRight(before);
  EXPECT_TRUE(group.residents().contains(pin));
  EXPECT_EQ(ReasonOf(after.heard->status), Reason::kTooLarge);
  EXPECT_THAT(std::string(after.heard->status.message()),
              HasSubstr("the group has 19, " + std::to_string(own) + " of them for pins"));
  const auto with = world.Generate(World::Ask("pin", {5, 6}, (19 - static_cast<int>(own)) * 4 - 2));
  world.Settle();
  world.ExpectRight(with);  // its adapter is counted once
  world.ExpectClean();
}

TEST(EnginePins, ContentThatSeveralNamesPinTakesItsPagesOnce) {
  World world;
  FakeGroup& group = world.AddGroup("g", 20);  // 19 pages of 4 tokens
  const Digest pin = world.Add("a", "text");
  world.Add("b", "text");
  const uint32_t own = toy::FootprintOf(pin).pages;
  const std::vector<AdapterPin> pins(19 / own + 1, {pin, ""});  // too many if each counted
  EXPECT_TRUE(world.engine->CheckPins(pins).ok());
  world.engine->SetPins(pins);
  world.Settle();
  EXPECT_EQ(group.residents(), (std::set<Digest>{pin}));
  const auto beside = world.Generate(World::Ask("base", {5}, (19 - static_cast<int>(own)) * 4));
  world.Settle();
  world.ExpectRight(beside);
}

TEST(EnginePins, APinWhoseFetchFailsIsTriedAgain) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest pin = world.Add("pin");
  group.FailFetch(pin, absl::UnavailableError("the store is down"));
  world.engine->SetPins({{pin, ""}});
  world.Settle();
  EXPECT_TRUE(group.residents().empty());
  for (int i = 0; i < 12; ++i) {
    world.executor.Advance(absl::Seconds(1));
    world.Settle();
  }
  EXPECT_TRUE(group.residents().contains(pin));
  EXPECT_EQ(group.prefetches, 2u);
}

TEST(EnginePins, APinnedAdapterStaysWhenItIsUnloaded) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest pin = world.Add("pin");
  world.engine->SetPins({{pin, ""}});
  world.Settle();
  const auto freed = Unload(world, pin);
  world.Settle();
  EXPECT_EQ(freed->calls, 1);
  EXPECT_EQ(*freed->bytes, TierBytes());
  EXPECT_TRUE(group.residents().contains(pin));
  const auto sent = world.Generate(World::Ask("pin", {5, 6}, 3));  // and none is kept back
  world.Settle();
  world.ExpectRight(sent);
}

}  // namespace
}  // namespace rootstock
