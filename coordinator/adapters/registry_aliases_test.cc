#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "coordinator/adapters/registry_fixture.h"

namespace rootstock {
namespace {

using testing::HasSubstr;

class RegistryAliasesTest : public RegistryTest {
 protected:
  void SetUp() override {
    RegistryTest::SetUp();
    ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
    ASSERT_TRUE(registry_->Register("a", "two", "default", true).ok());
  }
  absl::StatusOr<AliasEntry> Set(const std::string& alias, std::vector<AliasTarget> targets,
                                 uint64_t expected = 0) {
    return registry_->SetAlias(alias, "default", std::move(targets), expected);
  }
  absl::StatusOr<AliasEntry> Rollback(uint64_t to = 0, uint64_t expected = 0) {
    return registry_->RollbackAlias("prod", "default", to, expected);
  }
};

TEST_F(RegistryAliasesTest, AnAliasStandsForAVersionUntilItIsSwitched) {
  const auto set = Set("prod", {{"a", 1}});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->revision, 1u);
  EXPECT_EQ(ResolvedOf("prod"), "a@1");
  ASSERT_TRUE(registry_->Register("a", "three", "default", true).ok());
  EXPECT_EQ(ResolvedOf("prod"), "a@1");
  EXPECT_EQ(Set("prod", {{"a"}})->targets[0].version, 3u);  // the newest when it was set
  for (int restarts = 0; restarts < 2; ++restarts) {
    EXPECT_EQ(ResolvedOf("prod"), "a@3");
    EXPECT_EQ(registry_->GetAlias("prod", "default")->revision, 2u);
    EXPECT_THAT(registry_->Get("a", "default")->aliases, testing::ElementsAre("prod"));
    EXPECT_TRUE(registry_->Get("a", "default", 1)->aliases.empty());
    Open();
  }
  Shown("adapter_alias_flips_total{result=\"ok\"} 0");
}

TEST_F(RegistryAliasesTest, NamesOfATenantAreOneNamespace) {
  ASSERT_TRUE(Set("prod", {{"a", 1}}).ok());
  EXPECT_EQ(ReasonOf(registry_->Register("prod", "one", "default").status()), Reason::kNameTaken);
  EXPECT_EQ(ReasonOf(registry_->Register("prod", "one", "default", true).status()),
            Reason::kNameTaken);
  EXPECT_EQ(ReasonOf(Set("a", {{"a", 1}}).status()), Reason::kNameTaken);
  EXPECT_EQ(ReasonOf(Set("base-model", {{"a", 1}}).status()), Reason::kNameTaken);
  EXPECT_EQ(ReasonOf(Set("Prod", {{"a", 1}}).status()), Reason::kInvalidArgument);
  EXPECT_EQ(ReasonOf(Set("x@1", {{"a", 1}}).status()), Reason::kInvalidArgument);
  EXPECT_TRUE(registry_->Register("prod", "one", "other").ok());
  // An alias is no adapter, and stands for adapters only.
  EXPECT_EQ(ReasonOf(registry_->Get("prod", "default").status()), Reason::kInvalidArgument);
  EXPECT_EQ(ReasonOf(registry_->Unregister("prod", "default").status()), Reason::kInvalidArgument);
  EXPECT_EQ(ReasonOf(Set("dev", {{"prod", 0}}).status()), Reason::kInvalidArgument);
  EXPECT_EQ(TextOf("prod@1"), "-");
  EXPECT_EQ(Set("dev", {{"a", 9}}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Set("dev", {{"b", 1}}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry_->SetAlias("dev", "other", {{"a", 1}}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(registry_->Resolve("dev", "other", "r").status().code(), absl::StatusCode::kNotFound);
  Shown("adapter_alias_flips_total{result=\"refused\"} 8");
}

TEST_F(RegistryAliasesTest, WhatAnAliasStandsForCannotBeUnregistered) {
  ASSERT_TRUE(Set("prod", {{"a", 1}}).ok());
  ASSERT_TRUE(Set("canary", {{"a", 1, 1}, {"a", 2, 9}}).ok());
  for (const uint32_t version : {0, 1}) {
    const absl::Status status = registry_->Unregister("a", "default", version).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(status), Reason::kNameTaken);
    EXPECT_THAT(std::string(status.message()), HasSubstr("canary, prod"));
  }
  ASSERT_TRUE(registry_->RemoveAlias("canary", "default").ok());
  EXPECT_TRUE(registry_->Unregister("a", "default", 2).ok());
  ASSERT_TRUE(registry_->RemoveAlias("prod", "default").ok());
  EXPECT_TRUE(registry_->Unregister("a", "default").ok());
}

TEST_F(RegistryAliasesTest, RollbackTakesTheRevisionBeforeBackAsANewOne) {
  ASSERT_TRUE(Set("prod", {{"a", 1}}).ok());
  EXPECT_EQ(Rollback().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Rollback().status().message(),
            "alias=prod: is at its first revision; there is none before");
  ASSERT_TRUE(Set("prod", {{"a", 2}}).ok());
  const auto back = Rollback();
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->revision, 3u);
  EXPECT_EQ(back->rolled_back_to, 1u);
  EXPECT_EQ(ResolvedOf("prod"), "a@1");
  Open();
  EXPECT_EQ(ResolvedOf("prod"), "a@1");
  EXPECT_EQ(Rollback()->revision, 4u);  // the revision before had a@2
  EXPECT_EQ(ResolvedOf("prod"), "a@2");
  EXPECT_EQ(Rollback(1)->revision, 5u);
  EXPECT_EQ(Rollback(1)->revision, 5u);  // is so already
  EXPECT_EQ(ReasonOf(Rollback(9).status()), Reason::kInvalidArgument);
  const auto history = registry_->AliasHistory("prod", "default", 3);
  ASSERT_EQ(history->size(), 3u);
  EXPECT_EQ(history->at(0).revision, 5u);
  EXPECT_EQ(history->at(2).rolled_back_to, 1u);
}

// Sent again after an answer that was lost, it does not undo itself.
TEST_F(RegistryAliasesTest, ARollbackOfASeenRevisionHappensOnce) {
  ASSERT_TRUE(Set("prod", {{"a", 1}}).ok());
  ASSERT_TRUE(Set("prod", {{"a", 2}}).ok());
  EXPECT_EQ(Rollback(0, 2)->revision, 3u);
  EXPECT_EQ(Rollback(0, 2)->revision, 3u);
  EXPECT_EQ(ResolvedOf("prod"), "a@1");
  EXPECT_EQ(Rollback(0, 1).status().code(), absl::StatusCode::kAborted);
}

TEST_F(RegistryAliasesTest, AChangeOfASeenRevisionIsRefusedWhenAnotherCameFirst) {
  ASSERT_TRUE(Set("prod", {{"a", 1}}).ok());
  ASSERT_TRUE(Set("prod", {{"a", 2}}, 1).ok());
  const absl::Status late = Set("prod", {{"a", 1, 5}}, 1).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(late), Reason::kInvalidArgument);
  EXPECT_EQ(Set("prod", {{"a", 2}}, 1)->revision, 2u);  // made already
  EXPECT_EQ(registry_->RemoveAlias("prod", "default", 1).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(registry_->RemoveAlias("prod", "default", 2).ok());
}

TEST_F(RegistryAliasesTest, RollbackToWhatIsGoneIsRefused) {
  ASSERT_TRUE(Set("prod", {{"a", 1}}).ok());
  ASSERT_TRUE(Set("prod", {{"a", 2}}).ok());
  ASSERT_TRUE(registry_->Unregister("a", "default", 1).ok());
  const absl::Status status = Rollback().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a@1"));
  EXPECT_EQ(ResolvedOf("prod"), "a@2");
}

TEST_F(RegistryAliasesTest, ARemovedAliasIsUnknownAndItsRevisionsGoOn) {
  ASSERT_TRUE(Set("prod", {{"a", 1}}).ok());
  ASSERT_TRUE(registry_->RemoveAlias("prod", "default").ok());
  // Sent again after an answer that was lost, or by who never saw it.
  EXPECT_TRUE(registry_->RemoveAlias("prod", "default").ok());
  EXPECT_TRUE(registry_->RemoveAlias("prod", "default", 1).ok());
  EXPECT_EQ(registry_->RemoveAlias("prod", "default", 7).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry_->RemoveAlias("prod", "other").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry_->GetAlias("prod", "default").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Rollback().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(TextOf("prod"), "-");
  Open();
  EXPECT_EQ(TextOf("prod"), "-");
  ASSERT_TRUE(registry_->Register("prod", "one", "default").ok());
  ASSERT_TRUE(registry_->Unregister("prod", "default").ok());
  EXPECT_EQ(Set("prod", {{"a", 2}})->revision, 3u);
  EXPECT_THAT(std::string(Rollback().status().message()),
              HasSubstr("stood for nothing before revision 3"));
}

TEST_F(RegistryAliasesTest, TwoSpellingsOfOneVersionAreOneTarget) {
  EXPECT_EQ(ReasonOf(Set("prod", {{"a", 0}, {"a", 2}}).status()), Reason::kInvalidArgument);
}

TEST_F(RegistryAliasesTest, AWeightedAliasGivesARequestTheSameVersionAlways) {
  ASSERT_TRUE(Set("canary", {{"a", 1, 3}, {"a", 2, 1}}).ok());
  std::set<std::string> seen;
  std::vector<std::string> first;
  for (int i = 0; i < 50; ++i) first.push_back(ResolvedOf("canary", absl::StrCat("r", i)));
  seen.insert(first.begin(), first.end());
  EXPECT_EQ(seen.size(), 2u);
  Open();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(ResolvedOf("canary", absl::StrCat("r", i)), first[i]);
}

TEST_F(RegistryAliasesTest, AliasesAreListedInPages) {
  for (const char* alias : {"x", "z", "y"}) ASSERT_TRUE(Set(alias, {{"a", 1}}).ok());
  EXPECT_EQ(registry_->ListAliases("default", "", 2).size(), 2u);
  const auto rest = registry_->ListAliases("default", "y", 2);
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].name, "z");
  EXPECT_TRUE(registry_->ListAliases("other", "", 2).empty());
}

TEST_F(RegistryAliasesTest, AnAliasKeepsTheBaseFromItsName) {
  ASSERT_TRUE(Set("prod", {{"a", 1}}).ok());
  registry_.reset();
  const auto opened =
      Registry::Open({.data_dir = base_ / "data", .base_name = "prod", .loader = LoadText});
  EXPECT_EQ(ReasonOf(opened.status()), Reason::kNameTaken);
}

// Readers see one target or the other, and always a content that is there.
TEST_F(RegistryAliasesTest, F14SwitchesUnderLoadShowOneVersionOrTheOther) {
  ASSERT_TRUE(Set("prod", {{"a", 1}}).ok());
  std::atomic<bool> stop = false;
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&] {
      while (!stop) {
        const auto bound = registry_->Resolve("prod", "default", "r");
        ASSERT_TRUE(bound.ok()) << bound.status();
        const Digest expected = Sha256Of(bound->resolved == "a@1" ? "one" : "two");
        ASSERT_EQ(bound->content->digest, expected);
      }
    });
  }
  for (uint32_t i = 0; i < 200; ++i) ASSERT_TRUE(Set("prod", {{"a", 2 - i % 2}}).ok());
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(registry_->GetAlias("prod", "default")->revision, 201u);
  Shown("adapter_alias_flips_total{result=\"ok\"} 201");
}

}  // namespace
}  // namespace rootstock
