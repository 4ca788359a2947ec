// What goes wrong in steps, and FAULTS F2, F8, G2, G3, H4 as far as they live in the engine.
#include <filesystem>
#include <future>
#include <thread>

#include "common/base/status.h"
#include "coordinator/engine/testing/toy_model.h"
#include "coordinator/engine/testing/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

size_t FilesUnder(const std::filesystem::path& directory) {
  size_t n = 0;
  for (const auto& e : std::filesystem::recursive_directory_iterator(directory)) {
    n += e.is_regular_file();
  }
  return n;
}

TEST(EngineFaults, NonfiniteLogitsFailTheirRequestAndTheOthersGoOn) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  world.Add("a");
  const auto first = world.Generate(World::Ask("base", {5, 6}, 12));
  const auto bad = world.Generate(World::Ask("a", {5, 6}, 12));
  const auto last = world.Generate(World::Ask("base", {7}, 12));
  world.Settle();
  world.ExpectRight(bad);
  group.tamper = [&](Completion& c) {
    if (c.step.rows.size() == 3) c.step.rows[1].nonfinite = true;
  };
  const auto one = world.Generate(World::Ask("base", {5, 6}, 12));
  const auto two = world.Generate(World::Ask("a", {5, 6}, 12));
  const auto three = world.Generate(World::Ask("base", {7}, 12));
  world.Settle();
  int failed = 0;
  for (const auto& sent : {one, two, three}) {
    if (sent.heard->status.ok()) {
      world.ExpectRight(sent);
      continue;
    }
    ++failed;
    EXPECT_EQ(sent.heard->status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(ReasonOf(sent.heard->status), Reason::kNonfinite);
    EXPECT_EQ(sent.heard->status.message(),
              "model=" + sent.request.model + ": logits were not finite");
    EXPECT_EQ(sent.heard->closes, 1);
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(world.Metric("outcome=\"internal_error\",tenant_class=\"default\"}"), 1);
  world.ExpectClean();
}

TEST(EngineFaults, AFailedStepFailsTheRequestsOfItsRowsAndTheGroupServesOn) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const auto one = world.Generate(World::Ask("base", {5, 6}, 12));
  const auto two = world.Generate(World::Ask("base", {7}, 12));
  world.Run();
  for (int i = 0; i < 2; ++i) {  // until both are in one step
    group.CompleteStep();
    world.Run();
  }
  group.tamper = [](Completion& c) {
    c.outcome = MakeError(absl::StatusCode::kInternal, Reason::kInternal, "step", "3",
                          "tp_rank 1: out of workspace");
    c.step = {};
  };
  const auto later = world.Generate(World::Ask("base", {8}, 12));  // in no step yet
  group.CompleteStep();
  group.tamper = nullptr;
  world.Settle();
  for (const auto& sent : {one, two}) {
    EXPECT_EQ(sent.heard->status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(sent.heard->status.message()),
                HasSubstr("a step failed: step=3: tp_rank 1: out of workspace"));
    EXPECT_EQ(sent.heard->closes, 1);
  }
  world.ExpectRight(later);
  world.ExpectClean();
}

TEST(EngineFaults, ARefusedPlanIsOurFaultAndNotTheClients) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const auto sent = world.Generate(World::Ask("base", {5, 6}, 12));
  world.Run();
  group.tamper = [](Completion& c) {
    c.outcome = InvalidField(Reason::kInvalidArgument, "rows[0].position", "9", "a gap");
    c.step = {};
  };
  group.CompleteStep();
  group.tamper = nullptr;
  world.Settle();
  EXPECT_EQ(sent.heard->status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReasonOf(sent.heard->status), Reason::kInternal);
  EXPECT_THAT(std::string(sent.heard->status.message()), HasSubstr("rows[0].position=9: a gap"));
  EXPECT_EQ(world.Metric("outcome=\"internal_error\",tenant_class=\"default\"}"), 1);
  EXPECT_EQ(world.Metric("outcome=\"client_error\",tenant_class=\"default\"}"), 0);
  world.ExpectClean();
}

TEST(EngineFaults, AGroupWhoseStepDoesNotEndIsLostAndItsRequestsGoOnElsewhere) {
  World world({.step_timeout = absl::Seconds(60)});
  FakeGroup& stuck = world.AddGroup("stuck");
  const auto sent = world.Generate(World::Ask("base", {5, 6}, 12));
  world.Run();
  for (int i = 0; i < 3; ++i) {  // slow, but under way
    world.executor.Advance(absl::Seconds(50));
    world.Run();
    ASSERT_TRUE(stuck.attached());
    stuck.CompleteStep();
    world.Run();
  }
  FakeGroup& good = world.AddGroup("good");
  world.executor.Advance(absl::Seconds(59));
  world.Run();
  EXPECT_TRUE(stuck.attached());
  good.CompleteAll();
  world.executor.Advance(absl::Seconds(1));
  world.Run();
  EXPECT_FALSE(stuck.attached());
  EXPECT_TRUE(absl::IsUnavailable(stuck.closed));
  EXPECT_THAT(std::string(stuck.closed.message()), HasSubstr("step=4: not completed within 1m"));
  EXPECT_TRUE(good.attached());
  world.Settle();
  world.ExpectRight(sent);
  EXPECT_EQ(world.StatusOf("stuck").state, "broken");
  EXPECT_TRUE(stuck.Attach(*world.engine).ok());
  world.ExpectClean();
}

TEST(EngineFaults, AResultWithoutARowFailsThatRequest) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const auto one = world.Generate(World::Ask("base", {5, 6}, 12));
  const auto two = world.Generate(World::Ask("base", {7}, 12));
  world.Run();
  group.CompleteStep();
  world.Run();
  group.tamper = [](Completion& c) {
    if (c.step.rows.size() > 1) c.step.rows.erase(c.step.rows.begin());
  };
  group.CompleteAll();
  group.tamper = nullptr;
  world.Settle();
  EXPECT_NE(one.heard->status.ok(), two.heard->status.ok());
  const auto& failed = one.heard->status.ok() ? two : one;
  EXPECT_THAT(std::string(failed.heard->status.message()), HasSubstr("no result came for it"));
  world.ExpectRight(one.heard->status.ok() ? one : two);
  world.ExpectClean();
}

TEST(EngineFaults, MinTokensTravelWithTheTokensTheyBan) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  group.keep_log = true;
  GenerateRequest r = World::Ask("base", {5, 6}, 12);
  r.ignore_eos = false;
  r.min_tokens = 4;
  r.stop_token_ids = {9};
  world.Generate(r);
  world.Run();
  ASSERT_FALSE(group.log.empty());
  const NewSequence& sequence = group.log[0].new_sequences.at(0);
  EXPECT_EQ(sequence.sampling.min_tokens, 4u);
  EXPECT_THAT(sequence.sampling.banned_until_min, UnorderedElementsAre(toy::kEos, 9));
  world.Settle();
}

TEST(EngineFaults, F2UnregisteredAdaptersLeaveNothingOnAnyTier) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  world.Add("kept");
  world.Generate(World::Ask("kept", {5}, 2));
  world.Settle();
  const size_t files = FilesUnder(world.directory / "data" / "blobs");
  for (int i = 0; i < 40; ++i) {
    const Digest digest = world.Add("a" + std::to_string(i));
    const auto sent = world.Generate(World::Ask("a" + std::to_string(i), {5}, 3));
    if (i % 2 == 0) world.Settle();
    // Every other one while it is fetched or in use.
    world.Unregister("a" + std::to_string(i));
    world.Settle();
    world.ExpectRight(sent);
    EXPECT_EQ(world.registry->FindDigest(digest), nullptr);
  }
  world.registry->AwaitRemovals();
  EXPECT_EQ(FilesUnder(world.directory / "data" / "blobs"), files);
  EXPECT_EQ(group.residents().size(), 1u);
  EXPECT_EQ(group.fetched().size(), 1u);
  EXPECT_EQ(world.registry->size(), 1u);
  world.ExpectClean();
}

TEST(EngineFaults, F8ContentThatCannotBeReadFailsItsRequestsUntilItIsThereAgain) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const Digest digest = world.Add("a");
  group.FailFetch(digest, MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, "blob",
                                    digest.Short(), "cut short"));
  const auto base = world.Generate(World::Ask("base", {5}, 20));
  const auto lost = world.Generate(World::Ask("a", {5}, 3));
  world.Settle();
  EXPECT_EQ(ReasonOf(lost.heard->status), Reason::kIoError);
  EXPECT_THAT(std::string(lost.heard->status.message()), HasSubstr("could not be loaded"));
  world.ExpectRight(base);
  EXPECT_EQ(world.Metric("adapter_loads_total{result=\"io_error\",source=\"coordinator\"}"), 1);
  const auto again = world.Generate(World::Ask("a", {5}, 3));
  world.Settle();
  world.ExpectRight(again);
  world.ExpectClean();
}

TEST(EngineFaults, G2AnAdapterIsReadBesideTheStepsAndNotInThem) {
  std::promise<void> reading, go_on;
  auto waits = std::make_shared<std::shared_future<void>>(go_on.get_future());
  WorldOptions options;
  options.loader = [&, waits](const std::filesystem::path& p) -> absl::StatusOr<LoadedAdapter> {
    reading.set_value();
    waits->wait();
    return InvalidField(Reason::kShapeMismatch, "tensor", p.string(), "another model's");
  };
  World world(options);
  world.AddGroup("g");
  std::thread registering([&] {
    const auto entry = world.registry->RegisterDirectory("slow", "slow", "default");
    EXPECT_EQ(ReasonOf(entry.status()), Reason::kShapeMismatch);
  });
  reading.get_future().wait();
  const auto sent = world.Generate(World::Ask("base", {5}, 20));
  world.Settle();
  world.ExpectRight(sent);  // while the adapter is still being read
  EXPECT_EQ(world.TryGenerate(World::Ask("slow", {5}, 2)).status().code(),
            absl::StatusCode::kNotFound);
  go_on.set_value();
  registering.join();
}

TEST(EngineFaults, G3TheFirstRequestOfAllMayNameAnAdapter) {
  World world;
  world.Add("a");
  const auto before = world.Generate(World::Ask("a", {5, 6}, 6));  // before any group is there
  world.Run();
  FakeGroup& group = world.AddGroup("g");
  world.Settle();
  world.ExpectRight(before);
  EXPECT_EQ(group.loads, 1u);
  world.ExpectClean();
}

TEST(EngineFaults, H4TheBaseIsNoAdapterAndCannotBeEvicted) {
  World world;
  FakeGroup& group = world.AddGroup("g", 10);
  std::vector<World::Sent> all;
  for (int i = 0; i < 12; ++i) {
    world.Add("a" + std::to_string(i));
    all.push_back(world.Generate(World::Ask("a" + std::to_string(i), {5}, 4)));
    all.push_back(world.Generate(World::Ask("base", {5, i}, 4)));
    world.Settle();
  }
  for (const auto& sent : all) world.ExpectRight(sent);
  EXPECT_GT(world.Metric("adapter_evictions_total{reason=\"pressure\",tier=\"device\"}"), 5);
  EXPECT_EQ(group.loads, 12u);
  EXPECT_EQ(world.Metric("adapters_resident{group=\"g\",tier=\"device\"}"),
            static_cast<double>(group.residents().size()));
  EXPECT_EQ(world.StatusOf("g").widest_step.distinct_adapters, 1u);
  // Neither looked up nor loaded.
  EXPECT_EQ(world.Metric("adapter_lookup_total{result=\"coordinator_fetch\"}"), 12);
  EXPECT_EQ(world.Metric("adapter_lookup_total{result=\"unknown\"}"), 0);
  world.ExpectClean();
}

}  // namespace
}  // namespace rootstock
