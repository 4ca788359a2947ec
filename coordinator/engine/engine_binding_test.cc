// What a request's `model` is bound to, and when.
#include <set>

#include "absl/strings/str_cat.h"
#include "coordinator/engine/testing/world.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

class EngineBinding : public testing::Test {
 protected:
  void SetUp() override {
    one_ = world_.Add("other", "one");
    ASSERT_TRUE(Version("pirate", "one").ok());
    ASSERT_TRUE(Version("pirate", "two").ok());
    ASSERT_TRUE(world_.registry->SetAlias("prod", "default", {{"pirate", 1}}).ok());
    world_.AddGroup("g");
  }
  absl::StatusOr<AdapterEntry> Version(const std::string& name, const std::string& text) {
    return world_.registry->RegisterDirectory(name, text, "default", true);
  }

  World world_;
  Digest one_;
};

TEST_F(EngineBinding, TheAnswerSaysWhatTheNameMeant) {
  const auto resolved = [&](const std::string& model) {
    return world_.Generate(World::Ask(model, {5}, 1)).heard->accepted.resolved_model;
  };
  EXPECT_EQ(resolved("pirate"), "pirate@2");
  EXPECT_EQ(resolved("pirate@1"), "pirate@1");
  EXPECT_EQ(resolved("prod"), "pirate@1");
  const auto base = world_.Generate(World::Ask("base", {5}, 1));
  EXPECT_EQ(base.heard->accepted.resolved_model, "base");
  EXPECT_FALSE(base.heard->accepted.adapter.has_value());
  EXPECT_FALSE(world_.TryGenerate(World::Ask("pirate@3", {5}, 1)).ok());
  EXPECT_FALSE(world_.TryGenerate(World::Ask("base@1", {5}, 1)).ok());
  EXPECT_EQ(world_.Metric("adapter_lookup_total{result=\"unknown\"}"), 2);
}

// FAULTS F5 and RELIABILITY F14: a switch, or the end of the version, between accept and first
// step changes nothing of the request.
TEST_F(EngineBinding, F5WhatWasAcceptedRunsAsItWasBound) {
  const auto sent = world_.Generate(World::Ask("prod", {5, 6}, 6));
  ASSERT_TRUE(world_.registry->SetAlias("prod", "default", {{"pirate", 2}}).ok());
  ASSERT_TRUE(world_.registry->Unregister("pirate", "default", 1).ok());
  const auto later = world_.Generate(World::Ask("prod", {5, 6}, 6));
  world_.Settle();
  EXPECT_EQ(sent.heard->accepted.adapter, one_);
  EXPECT_EQ(later.heard->accepted.resolved_model, "pirate@2");
  world_.ExpectRight(sent);
  world_.ExpectRight(later);
  world_.ExpectClean();
}

TEST_F(EngineBinding, ACanaryDrawsByRequestIdAlsoByOneThatWasDrawn) {
  ASSERT_TRUE(
      world_.registry->SetAlias("canary", "default", {{"pirate", 1, 1}, {"pirate", 2, 1}}).ok());
  std::set<std::string> seen;
  for (int i = 0; i < 32; ++i) {
    auto ask = World::Ask("canary", {5}, 1);
    ask.request_id = i % 2 == 0 ? "" : absl::StrCat("r", i);
    const auto sent = world_.Generate(ask);
    const GenerateAccepted& accepted = sent.heard->accepted;
    EXPECT_EQ(world_.registry->Resolve("canary", "default", accepted.request_id)->resolved,
              accepted.resolved_model);
    seen.insert(accepted.resolved_model);
    world_.Settle();
  }
  EXPECT_EQ(seen.size(), 2u);
}

}  // namespace
}  // namespace rootstock
