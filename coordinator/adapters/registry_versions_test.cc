#include <thread>

#include "coordinator/adapters/registry_fixture.h"

namespace rootstock {
namespace {

using testing::HasSubstr;

using RegistryVersionsTest = RegistryTest;

TEST_F(RegistryVersionsTest, ANewVersionIsTheNewestAndTheOldOnesStay) {
  ASSERT_EQ(registry_->Register("a", "one", "default")->version, 1u);
  const auto second = registry_->Register("a", "two", "default", true);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->version, 2u);
  EXPECT_TRUE(second->newest);
  for (int restarts = 0; restarts < 2; ++restarts) {
    EXPECT_EQ(TextOf("a"), "two");
    EXPECT_EQ(ResolvedOf("a"), "a@2");
    EXPECT_EQ(TextOf("a@1"), "one");
    EXPECT_EQ(ResolvedOf("a@1"), "a@1");
    EXPECT_EQ(TextOf("a@2"), "two");
    for (const char* none : {"a@3", "a@0", "a@", "a@01", "a@x", "@1", "b@1"}) {
      EXPECT_EQ(TextOf(none), "-") << none;
    }
    EXPECT_FALSE(registry_->Get("a", "default", 1)->newest);
    EXPECT_EQ(registry_->Get("a", "default", 1)->receipt_json, "{\"text\":\"one\"}");
    EXPECT_EQ(registry_->size(), 1u);
    Open();
  }
}

// Equal content of another tenant, or under another name, may come with another config: what that
// said is told of the version that it came with only.
TEST_F(RegistryVersionsTest, WhatAConfigSaidIsOfItsVersionOnly) {
  const auto add = [&](const std::string& name, const std::string& tenant,
                       const std::string& config) {
    return registry_->RegisterFrom(name, tenant, false, [&] {
      absl::StatusOr<LoadedAdapter> loaded = LoadText(base_ / "root" / "one");
      loaded->config_json = config;
      return loaded;
    });
  };
  ASSERT_EQ(add("a", "acme", "{\"secret\":1}")->config_json, "{\"secret\":1}");
  ASSERT_EQ(add("a", "other", "{\"own\":2}")->config_json, "{\"own\":2}");
  ASSERT_TRUE(add("b", "other", "{}").ok());
  // The same again: the version stays as it came, and the answer says so.
  EXPECT_EQ(add("a", "acme", "{\"later\":3}")->config_json, "{\"secret\":1}");
  for (int restarts = 0; restarts < 2; ++restarts) {
    EXPECT_EQ(registry_->Get("a", "acme")->config_json, "{\"secret\":1}");
    EXPECT_EQ(registry_->Get("a", "other")->config_json, "{\"own\":2}");
    EXPECT_EQ(registry_->Get("b", "other")->config_json, "{}");
    EXPECT_EQ(registry_->Get("b", "other")->receipt_json, "{\"text\":\"one\"}");
    Open();
  }
}

TEST_F(RegistryVersionsTest, TheNewestContentAgainIsNoNewVersion) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  EXPECT_EQ(registry_->Register("a", "one", "default", true)->version, 1u);
  ASSERT_TRUE(registry_->Register("a", "two", "default", true).ok());
  EXPECT_EQ(registry_->Register("a", "two", "default")->version, 2u);
  Shown("registry_revision 2");
  // An older one's content under the taken name is other content, and may be a version again.
  EXPECT_EQ(ReasonOf(registry_->Register("a", "one", "default").status()), Reason::kNameTaken);
  EXPECT_EQ(registry_->Register("a", "one", "default", true)->version, 3u);
  EXPECT_EQ(Blobs(), 2u);
}

TEST_F(RegistryVersionsTest, NumbersAreNeverUsedAgain) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  ASSERT_TRUE(registry_->Register("a", "two", "default", true).ok());
  ASSERT_TRUE(registry_->Unregister("a", "default", 2).ok());
  EXPECT_EQ(ResolvedOf("a"), "a@1");
  EXPECT_EQ(registry_->Register("a", "three", "default", true)->version, 3u);
  ASSERT_EQ(registry_->Unregister("a", "default")->size(), 2u);
  EXPECT_EQ(Blobs(), 0u);
  Open();
  EXPECT_EQ(registry_->Register("a", "one", "default")->version, 4u);
  EXPECT_EQ(registry_->Register("a", "one", "other")->version, 1u);
}

TEST_F(RegistryVersionsTest, VersionsThatShareContentLetItGoWithTheLastOne) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  ASSERT_TRUE(registry_->Register("a", "two", "default", true).ok());
  ASSERT_TRUE(registry_->Register("a", "one", "default", true).ok());
  EXPECT_FALSE(registry_->Unregister("a", "default", 1)->at(0).last_name);
  EXPECT_EQ(TextOf("a@3"), "one");
  const auto rest = registry_->Unregister("a", "default");
  ASSERT_EQ(rest->size(), 2u);
  EXPECT_TRUE(rest->at(0).last_name && rest->at(1).last_name);
  Shown("adapters{state=\"active\"} 0");
}

// FAULTS F7: what serves goes on to serve until the new one is whole.
TEST_F(RegistryVersionsTest, F7TheOldVersionServesUntilTheNewOneIsReady) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  std::string during;
  Open([&](const std::filesystem::path& directory) {
    during = ResolvedOf("a");
    return LoadText(directory);
  });
  EXPECT_FALSE(registry_->Register("a", "bad", "default", true).ok());
  EXPECT_EQ(during, "a@1");
  EXPECT_EQ(ResolvedOf("a"), "a@1");
  during.clear();
  ASSERT_TRUE(registry_->Register("a", "two", "default", true).ok());
  EXPECT_EQ(during, "a@1");
  EXPECT_EQ(ResolvedOf("a"), "a@2");
}

TEST_F(RegistryVersionsTest, ALostNewestVersionLeavesTheNameToTheOneBefore) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  ASSERT_TRUE(registry_->Register("a", "two", "default", true).ok());
  std::filesystem::remove(base_ / "data" / "blobs" / Sha256Of("two").Hex());
  Open();
  EXPECT_EQ(ResolvedOf("a"), "a@1");
  EXPECT_EQ(registry_->Resolve("a@2", "default", "r").status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(registry_->Register("a", "two", "default")->version, 2u);
  EXPECT_EQ(ResolvedOf("a"), "a@2");
  // An older lost one too.
  std::filesystem::remove(base_ / "data" / "blobs" / Sha256Of("one").Hex());
  Open();
  EXPECT_EQ(TextOf("a@1"), "-");
  EXPECT_EQ(registry_->Register("a", "one", "default")->version, 1u);
  EXPECT_EQ(TextOf("a@1"), "one");
}

TEST_F(RegistryVersionsTest, TheListHasEveryVersionInPages) {
  for (const char* name : {"b", "a", "c"}) {
    ASSERT_TRUE(registry_->Register(name, "one", "default").ok());
    ASSERT_TRUE(registry_->Register(name, "two", "default", true).ok());
  }
  ASSERT_TRUE(registry_->Register("aa", "two", "other").ok());
  std::string listed;
  AdapterRef after;
  for (;;) {
    const auto page = registry_->List("default", after, 1);
    if (page.empty()) break;
    after = {page[0].name, page[0].version};
    listed += after.Text() + (page[0].newest ? "* " : " ");
  }
  EXPECT_EQ(listed, "a@1 a@2* b@1 b@2* c@1 c@2* ");
}

TEST_F(RegistryVersionsTest, ConcurrentNewVersionsGetNumbersOfTheirOwn) {
  for (int i = 0; i < 40; ++i) Write("text-" + std::to_string(i), "text-" + std::to_string(i));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = t; i < 40; i += 4) {
        EXPECT_TRUE(registry_->Register("a", "text-" + std::to_string(i), "default", true).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto all = registry_->List("default", {}, 100);
  ASSERT_EQ(all.size(), 40u);
  for (uint32_t i = 0; i < 40; ++i) EXPECT_EQ(all[i].version, i + 1);
}

TEST_F(RegistryVersionsTest, WhenGoneWaitsForEveryHandleUnlessANameComesBack) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  std::vector<bool> gone;
  const auto wait = [&] {
    registry_->WhenGone(Sha256Of("one"), [&](bool now) { gone.push_back(now); });
  };
  wait();
  EXPECT_EQ(gone, (std::vector<bool>{false}));  // it has a name
  AdapterHandle first = registry_->Resolve("a", "default", "r")->content;
  AdapterHandle second = registry_->FindDigest(Sha256Of("one"));
  ASSERT_TRUE(registry_->Unregister("a", "default").ok());
  wait();
  EXPECT_EQ(registry_->CountLeaks(), 2u);
  Shown("registry_refcount_leaks_total 2");
  first.reset();
  EXPECT_EQ(gone.size(), 1u);
  second.reset();
  EXPECT_EQ(gone, (std::vector<bool>{false, true}));
  EXPECT_EQ(registry_->CountLeaks(), 0u);
  wait();
  EXPECT_EQ(gone, (std::vector<bool>{false, true, true}));  // nobody has it
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  first = registry_->FindDigest(Sha256Of("one"));
  ASSERT_TRUE(registry_->Unregister("a", "default").ok());
  wait();
  ASSERT_TRUE(registry_->Register("b", "one", "other").ok());
  EXPECT_EQ(gone, (std::vector<bool>{false, true, true, false}));
}

TEST_F(RegistryVersionsTest, LastUsesAreWrittenInBatchesAndOutliveTheProcess) {
  for (const char* name : {"one", "two", "three"}) {
    ASSERT_TRUE(registry_->Register(name, name, "default").ok());
  }
  const auto use = [&](const char* model, int64_t at) {
    now_ = at;
    ASSERT_TRUE(registry_->Resolve(model, "default", "r").ok());
  };
  const auto used = [&](const char* name) {
    return registry_->Get(name, "default")->last_used_unix_ms;
  };
  use("one", 5000);
  use("one", 6000);
  use("two@1", 7000);
  Shown("registry_log_fsync_duration_seconds_count 3");  // none for a request
  ASSERT_TRUE(registry_->SaveUses().ok());
  Shown("registry_log_fsync_duration_seconds_count 4");
  ASSERT_TRUE(registry_->SaveUses().ok());  // nothing new
  Shown("registry_log_fsync_duration_seconds_count 4");
  Shown("registry_revision 3");
  use("one", 8000);
  ASSERT_TRUE(registry_->Unregister("two", "default").ok());
  Open();  // which ends the one before
  EXPECT_EQ(used("one"), 8000);
  EXPECT_EQ(used("three"), 0);
  EXPECT_EQ(registry_->List("default", {}, 9)[0].last_used_unix_ms, 8000);
}

TEST_F(RegistryVersionsTest, WhatIsGoneCanBeUnregisteredAgain) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  ASSERT_TRUE(registry_->Register("a", "two", "default", true).ok());
  for (const uint32_t version : {1u, 0u}) {
    EXPECT_EQ(registry_->Unregister("a", "default", version)->size(), 1u);
    for (int again = 0; again < 2; ++again) {
      const auto gone = registry_->Unregister("a", "default", version);
      ASSERT_TRUE(gone.ok()) << gone.status();
      EXPECT_TRUE(gone->empty());
      Open();
    }
  }
  EXPECT_EQ(ReasonOf(registry_->Unregister("a", "default", 3).status()), Reason::kUnknownModel);
  EXPECT_EQ(ReasonOf(registry_->Unregister("a", "other").status()), Reason::kUnknownModel);
}

TEST_F(RegistryVersionsTest, PinsLiveWithTheirVersion) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  ASSERT_TRUE(registry_->Register("a", "two", "default", true).ok());
  EXPECT_EQ(registry_->Pin("a", "default", 0, "")->version, 2u);
  EXPECT_TRUE(registry_->Pin("a", "default", 2, "").ok());
  EXPECT_TRUE(registry_->Pin("a", "default", 1, "g1").ok());
  EXPECT_TRUE(registry_->Pin("a", "default", 1, "g0").ok());
  Shown("registry_pinned_adapters{tenant_class=\"default\"} 2");
  Shown("registry_revision 5");
  Open();
  Shown("registry_pinned_adapters{tenant_class=\"default\"} 2");
  EXPECT_THAT(registry_->Get("a", "default", 1)->pins, testing::ElementsAre("g0", "g1"));
  EXPECT_THAT(registry_->Get("a", "default", 2)->pins, testing::ElementsAre(""));
  EXPECT_EQ(registry_->Pins().size(), 3u);

  EXPECT_EQ(ReasonOf(registry_->Unpin("a", "default", 2, "g0").status()), Reason::kNameTaken);
  EXPECT_TRUE(registry_->Unpin("a", "default", 1, "g7").ok());
  EXPECT_THAT(registry_->Unpin("a", "default", 1, "g0")->pins, testing::ElementsAre("g1"));
  EXPECT_TRUE(registry_->Unpin("a", "default", 1, "")->pins.empty());
  EXPECT_TRUE(registry_->Unpin("a", "default", 1, "")->pins.empty());
  EXPECT_EQ(registry_->Pin("b", "default", 0, "").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry_->Pin("a", "other", 0, "").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(registry_->Unregister("a", "default").ok());
  Shown("registry_pinned_adapters{tenant_class=\"default\"} 0");
  EXPECT_TRUE(registry_->Pins().empty());
  Open();
  EXPECT_TRUE(registry_->Pins().empty());
}

}  // namespace
}  // namespace rootstock
