#include "coordinator/adapters/registry.h"

#include <atomic>
#include <fstream>
#include <thread>

#include "common/base/status.h"
#include "common/objects/object_store.h"
#include "coordinator/adapters/registry_fixture.h"
#include "coordinator/content/fake_object_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST_F(RegistryTest, RegistersAndResolves) {
  const auto entry = registry_->Register("a", "one", "default");
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ(entry->digest, Sha256Of("one"));
  EXPECT_EQ(entry->registered_unix_ms, 1000);
  EXPECT_EQ(entry->receipt_json, "{\"text\":\"one\"}");
  now_ = 2000;
  const auto handle = registry_->Resolve("a", "default", "r");
  ASSERT_TRUE(handle.ok());
  EXPECT_EQ(handle->content->digest, entry->digest);
  EXPECT_EQ(handle->content->spec.modules.size(), 2u);
  EXPECT_EQ(registry_->Get("a", "default")->last_used_unix_ms, 2000);
  EXPECT_TRUE(BlobThere(entry->digest));
}

TEST_F(RegistryTest, A3UnknownAndForeignNamesAreNotFoundInTheSameWords) {
  ASSERT_TRUE(registry_->Register("a", "one", "other").ok());
  const absl::Status foreign = registry_->Resolve("a", "default", "r").status();
  EXPECT_EQ(foreign.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(foreign), Reason::kUnknownModel);
  EXPECT_THAT(std::string(foreign.message()), testing::Not(HasSubstr("other")));
  EXPECT_EQ(registry_->Get("a", "default").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry_->Unregister("a", "default").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(registry_->List("default", {}, 10).empty());
  EXPECT_TRUE(registry_->Resolve("a", "other", "r").ok());
}

TEST_F(RegistryTest, SameContentAgainSucceedsOtherContentIsRefused) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  EXPECT_TRUE(registry_->Register("a", "one", "default").ok());
  const absl::Status other = registry_->Register("a", "two", "default").status();
  EXPECT_EQ(other.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReasonOf(other), Reason::kNameTaken);
  EXPECT_EQ(registry_->Resolve("a", "default", "r").value().content->digest, Sha256Of("one"));
  EXPECT_EQ(Blobs(), 1u);
  EXPECT_EQ(ReasonOf(registry_->Register("base-model", "one", "default").status()),
            Reason::kNameTaken);
}

TEST_F(RegistryTest, BadNamesAndPathsAreRefused) {
  EXPECT_EQ(ReasonOf(registry_->Register("Bad Name", "one", "default").status()),
            Reason::kInvalidArgument);
  EXPECT_EQ(ReasonOf(registry_->Register("a", "../root/one", "default").status()),
            Reason::kPathInvalid);
  EXPECT_EQ(ReasonOf(registry_->Register("a", "one", "").status()), Reason::kInvalidArgument);
  EXPECT_THAT(metrics_->Text(),
              HasSubstr("rootstock_adapter_rejects_total{reason=\"path_invalid\"} 1"));
}

TEST_F(RegistryTest, TheRevisionCountsCommittedChangesAndSurvivesARestart) {
  const auto shown = [this](const std::string& line) {
    EXPECT_THAT(metrics_->Text(), HasSubstr("\n" + line + "\n"));
  };
  shown("rootstock_registry_revision 0");
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  ASSERT_TRUE(registry_->Register("b", "two", "default").ok());
  shown("rootstock_registry_revision 2");
  EXPECT_FALSE(registry_->Register("c", "bad", "default").ok());
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());  // it is there already
  shown("rootstock_registry_revision 2");
  Open();
  shown("rootstock_registry_revision 2");
  ASSERT_TRUE(registry_->Unregister("a", "default").ok());
  shown("rootstock_registry_revision 3");
  shown("rootstock_registry_log_fsync_duration_seconds_count 1");
}

TEST_F(RegistryTest, ADirectoryHasOneOwner) {
  const auto second = Registry::Open({.data_dir = base_ / "data", .loader = LoadText});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another coordinator uses it"));
  EXPECT_EQ(registry_->incarnation(), 1u);
  Open();
  EXPECT_EQ(registry_->incarnation(), 2u);
}

TEST_F(RegistryTest, F9RestartKeepsAllAndRaisesTheIncarnation) {
  EXPECT_EQ(registry_->incarnation(), 1u);
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  ASSERT_TRUE(registry_->Register("b", "two", "t2").ok());
  Open();
  EXPECT_EQ(registry_->incarnation(), 2u);
  EXPECT_EQ(registry_->size(), 2u);
  const auto handle = registry_->Resolve("b", "t2", "r");
  ASSERT_TRUE(handle.ok());
  EXPECT_EQ(handle->content->spec, LoadText(base_ / "root" / "two")->spec);
  EXPECT_EQ(registry_->Get("a", "default")->receipt_json, "{\"text\":\"one\"}");
}

TEST_F(RegistryTest, F10DeleteThenCreateAgainMeetsNothingOld) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  ASSERT_TRUE(registry_->Unregister("a", "default").ok());
  EXPECT_EQ(registry_->Resolve("a", "default", "r").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(registry_->Register("a", "two", "default").ok());
  EXPECT_EQ(registry_->Resolve("a", "default", "r").value().content->digest, Sha256Of("two"));
  EXPECT_EQ(Blobs(), 1u);
}

TEST_F(RegistryTest, F11AFailedRegistrationLeavesNothing) {
  const absl::Status bad = registry_->Register("a", "bad", "default").status();
  EXPECT_EQ(ReasonOf(bad), Reason::kNonfinite);
  EXPECT_EQ(registry_->Resolve("a", "default", "r").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Blobs(), 0u);
  EXPECT_THAT(metrics_->Text(), HasSubstr("rootstock_adapters{state=\"staged\"} 0"));
  EXPECT_THAT(metrics_->Text(),
              HasSubstr("rootstock_adapter_rejects_total{reason=\"nonfinite\"} 1"));
  EXPECT_TRUE(registry_->Register("a", "one", "default").ok());
  // A blob that can't be written leaves no name either.
  fs::remove_all(base_ / "data" / "blobs");
  EXPECT_FALSE(registry_->Register("b", "two", "default").ok());
  EXPECT_EQ(registry_->Resolve("b", "default", "r").status().code(), absl::StatusCode::kNotFound);
  Open();
  EXPECT_EQ(registry_->size(), 1u);
}

TEST_F(RegistryTest, F3ConcurrentRegistrationsOfOneNameAgree) {
  std::atomic<int> inside = 0, most = 0;
  Open([&](const fs::path& directory) {
    const int now = ++inside;
    int seen = most.load();
    while (now > seen && !most.compare_exchange_weak(seen, now)) {
    }
    std::this_thread::yield();
    --inside;
    return LoadText(directory);
  });
  std::vector<std::thread> threads;
  std::atomic<int> good = 0, taken = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const auto got = registry_->Register("a", i % 4 == 3 ? "two" : "one", "default");
      got.ok() ? ++good : ++taken;
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(most, 1);  // one reads, the others wait for its outcome
  EXPECT_TRUE((good == 6 && taken == 2) || (good == 2 && taken == 6)) << good << " " << taken;
  EXPECT_EQ(Blobs(), 1u);
  EXPECT_EQ(registry_->size(), 1u);
}

TEST_F(RegistryTest, F4UnregisterWhileOthersRegisterTheName) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 20; ++k) {
        if (i % 2 == 0) {
          EXPECT_TRUE(registry_->Register("a", "one", "default").ok());
        } else {
          registry_->Unregister("a", "default").IgnoreError();
        }
        if (auto handle = registry_->Resolve("a", "default", "r"); handle.ok()) {
          EXPECT_TRUE(BlobThere(handle->content->digest));
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  EXPECT_TRUE(BlobThere(Sha256Of("one")));
  Open();
  EXPECT_EQ(registry_->size(), 1u);
  EXPECT_TRUE(registry_->Resolve("a", "default", "r").ok());
}

TEST_F(RegistryTest, TheBlobStaysForWhatIsInFlight) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  AdapterHandle handle = registry_->Resolve("a", "default", "r").value().content;
  const auto gone = registry_->Unregister("a", "default");
  ASSERT_TRUE(gone.ok());
  EXPECT_TRUE(gone->at(0).last_name);
  EXPECT_EQ(gone->at(0).blob_bytes, 3u);
  EXPECT_TRUE(BlobThere(handle->digest));
  EXPECT_NE(registry_->FindDigest(handle->digest), nullptr);
  EXPECT_THAT(metrics_->Text(), HasSubstr("rootstock_adapters{state=\"retired\"} 1"));
  handle.reset();
  EXPECT_FALSE(BlobThere(Sha256Of("one")));
  EXPECT_EQ(registry_->FindDigest(Sha256Of("one")), nullptr);
  EXPECT_THAT(metrics_->Text(), HasSubstr("rootstock_adapters{state=\"retired\"} 0"));
}

TEST_F(RegistryTest, OneTenantsUnregisterKeepsAnothersIdenticalContent) {
  ASSERT_TRUE(registry_->Register("a", "one", "t1").ok());
  ASSERT_TRUE(registry_->Register("b", "one", "t2").ok());
  EXPECT_EQ(Blobs(), 1u);
  const auto first = registry_->Unregister("a", "t1");
  EXPECT_FALSE(first->at(0).last_name);
  EXPECT_TRUE(registry_->Resolve("b", "t2", "r").ok());
  EXPECT_TRUE(registry_->Unregister("b", "t2")->at(0).last_name);
  EXPECT_EQ(Blobs(), 0u);
}

TEST_F(RegistryTest, ALostBlobIsReportedAndHealedByRegisteringAgain) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  fs::resize_file(base_ / "data" / "blobs" / Sha256Of("one").Hex(), 1);
  Open();
  const absl::Status status = registry_->Resolve("a", "default", "r").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(registry_->Get("a", "default")->state, AdapterState::kFailed);
  EXPECT_THAT(metrics_->Text(), HasSubstr("rootstock_adapters{state=\"failed\"} 1"));
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  EXPECT_TRUE(registry_->Resolve("a", "default", "r").ok());
  EXPECT_THAT(metrics_->Text(), HasSubstr("rootstock_adapters{state=\"failed\"} 0"));
  EXPECT_THAT(metrics_->Text(), HasSubstr("rootstock_adapters{state=\"active\"} 1"));
}

TEST_F(RegistryTest, OpenSweepsUnfinishedAndSetsUnnamedBlobsAside) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  std::ofstream(base_ / "data" / "blobs" / ".new-abcdef") << "half";
  std::ofstream(base_ / "data" / "blobs" / Sha256Of("nobody").Hex()) << "orphan";
  Open();
  EXPECT_EQ(Blobs(), 2u);  // with the directory of the one that is unknown
  EXPECT_FALSE(BlobThere(Sha256Of("nobody")));
}

TEST_F(RegistryTest, ANewRegistryBesideContentIsRefused) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  ASSERT_TRUE(registry_->Register("b", "two", "default").ok());
  registry_.reset();
  const std::filesystem::path data = base_ / "data";
  std::filesystem::rename(data / "registry.db", base_ / "saved");
  RegistryOptions options{
      .data_dir = data, .base_name = "base-model", .loader = LoadText, .unix_ms = [] {
        return int64_t{1};
      }};
  for (const char* what : {"missing", "empty", "again"}) {
    if (what == std::string("empty")) std::ofstream(data / "registry.db", std::ios::trunc);
    const absl::Status refused = Registry::Open(options).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << what;
    EXPECT_THAT(std::string(refused.message()),
                testing::AllOf(HasSubstr("registry.db is new or empty"), HasSubstr("2 contents"),
                               HasSubstr("registry.db-wal"), HasSubstr("6 bytes"),
                               HasSubstr("--discard-unknown-content")));
    EXPECT_TRUE(BlobThere(Sha256Of("one")) && BlobThere(Sha256Of("two")));
  }
  std::filesystem::rename(base_ / "saved", data / "registry.db");
  Open();
  EXPECT_EQ(TextOf("a"), "one");
  EXPECT_EQ(TextOf("b"), "two");
  registry_.reset();
  std::filesystem::remove(data / "registry.db");
  options.blobs.unknown_grace = std::chrono::hours(0);
  ASSERT_TRUE(Registry::Open(options).ok());
  EXPECT_EQ(Blobs(), 0u);
}

TEST_F(RegistryTest, AnOlderRegistryLosesNothing) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  registry_.reset();
  std::filesystem::copy_file(base_ / "data/registry.db", base_ / "older");
  Open();
  ASSERT_TRUE(registry_->Register("b", "two", "default").ok());
  registry_.reset();
  std::filesystem::rename(base_ / "data/registry.db", base_ / "newer");
  std::filesystem::copy_file(base_ / "older", base_ / "data/registry.db");
  Open();
  EXPECT_EQ(TextOf("a"), "one");
  EXPECT_EQ(TextOf("b"), "-");
  registry_.reset();
  std::filesystem::rename(base_ / "newer", base_ / "data/registry.db");
  Open();
  EXPECT_EQ(TextOf("b"), "two");
}

TEST_F(RegistryTest, TheBaseIsRecordedOnceAndHeld) {
  EXPECT_TRUE(registry_->CheckBase(Sha256Of("model")).ok());
  EXPECT_TRUE(registry_->CheckBase(Sha256Of("model")).ok());
  Open();
  EXPECT_TRUE(registry_->CheckBase(Sha256Of("model")).ok());
  const absl::Status other = registry_->CheckBase(Sha256Of("other"));
  EXPECT_EQ(ReasonOf(other), Reason::kGroupMismatch);
  EXPECT_THAT(std::string(other.message()), HasSubstr(Sha256Of("model").Short()));
}

TEST(AdapterStates, LegalMovesOnly) {
  using enum AdapterState;
  EXPECT_TRUE(MayMove(kStaged, kActive));
  EXPECT_FALSE(MayMove(kStaged, kRetired));
  EXPECT_FALSE(MayMove(kRetired, kFailed));
  EXPECT_FALSE(MayMove(kActive, kStaged));
  EXPECT_TRUE(MayMove(kFailed, kActive));
}

TEST_F(RegistryTest, ABlobThatVanishedWhileRunningIsHealedByAddingTheAdapterAgain) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  std::filesystem::remove(base_ / "data" / "blobs" / Sha256Of("one").Hex());
  EXPECT_TRUE(absl::IsNotFound(registry_->ReadContent(Sha256Of("one")).status()));
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  EXPECT_TRUE(registry_->ReadContent(Sha256Of("one")).ok());
}

TEST_F(RegistryTest, ATenantsContentsHaveALimit) {
  // "one" and "two" are 3 bytes each.
  const auto open = [&] {
    registry_.reset();
    auto opened = Registry::Open({.data_dir = base_ / "data",
                                  .adapter_root = base_ / "root",
                                  .base_name = "base-model",
                                  .loader = LoadText,
                                  .max_tenant_bytes = 6,
                                  .unix_ms = [this] { return now_.load(); }});
    ASSERT_TRUE(opened.ok()) << opened.status();
    registry_ = *std::move(opened);
  };
  open();
  const auto add = [&](const std::string& name, const std::string& text, bool new_version = false) {
    const auto entry = registry_->Register(name, text, "default", new_version);
    return entry.ok() ? "ok" : std::string(entry.status().message());
  };
  EXPECT_EQ(add("a", "one"), "ok");
  EXPECT_EQ(add("b", "one"), "ok");  // a content counts once
  EXPECT_EQ(add("c", "two"), "ok");
  const absl::Status full = registry_->Register("d", "three", "default").status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(full), Reason::kQuota);
  EXPECT_EQ(full.message(),
            "tenant=default: its adapters' 6 bytes and this one's 5 exceed --max-tenant-bytes, 6");
  EXPECT_FALSE(BlobThere(Sha256Of("three")));
  EXPECT_EQ(ReasonOf(registry_->Register("a", "three", "default", /*new_version=*/true).status()),
            Reason::kQuota);
  EXPECT_EQ(add("a", "two", /*new_version=*/true), "ok");
  EXPECT_TRUE(registry_->Register("d", "three", "other").ok());
  // Counted anew at a start; what goes is counted down, with its last version.
  open();
  EXPECT_EQ(ReasonOf(registry_->Register("d", "three", "default").status()), Reason::kQuota);
  ASSERT_TRUE(registry_->Unregister("a", "default").ok());
  EXPECT_EQ(ReasonOf(registry_->Register("d", "three", "default").status()), Reason::kQuota);
  ASSERT_TRUE(registry_->Unregister("b", "default").ok());
  ASSERT_TRUE(registry_->Unregister("c", "default").ok());
  EXPECT_EQ(add("d", "three"), "ok");
}

// PROTOCOL §6: one tenant's unload must not free another's identical adapter.
TEST_F(RegistryTest, ATenantUnloadsNothingThatAnotherOneNames) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  EXPECT_EQ(registry_->Unloadable("a", "default", 0)->size(), 1u);
  ASSERT_TRUE(registry_->Register("b", "one", "other").ok());
  EXPECT_TRUE(registry_->Unloadable("a", "default", 0)->empty());
  ASSERT_TRUE(registry_->Unregister("b", "other").ok());
  EXPECT_EQ(registry_->Unloadable("a", "default", 0)->size(), 1u);
}

TEST_F(RegistryTest, TellsWhereContentLies) {
  fs::create_directories(base_ / "store");
  auto remote = *OpenObjectStore(*ParseStoreUri("file://" + (base_ / "store").string()), {});
  const auto cached = *Registry::Open(
      {.data_dir = base_ / "cached",
       .adapter_root = base_ / "root",
       .base_name = "base-model",
       .loader = LoadText,
       .blobs = {.max_bytes = 1, .remote = std::move(remote), .remote_name = "store"},
       .unix_ms = [] { return int64_t{1}; }});
  for (const char* name : {"one", "two"}) {  // the disk has room for one
    ASSERT_TRUE(cached->Register(name, name, "default").ok());
  }
  EXPECT_EQ(cached->Get("one", "default")->stored_in, "object");
  EXPECT_EQ(cached->Get("two", "default")->stored_in, "coordinator");
  ASSERT_TRUE(registry_->Register("one", "one", "default").ok());
  EXPECT_EQ(registry_->List("default", {}, 1).at(0).stored_in, "coordinator");
}

// Its store may take long to give it.
TEST_F(RegistryTest, F1WhoTakesContentAwayDoesNotWaitForItsReaders) {
  const auto remote = std::make_shared<FakeObjectStore>();
  const auto cached =
      *Registry::Open({.data_dir = base_ / "cached",
                       .adapter_root = base_ / "root",
                       .base_name = "base-model",
                       .loader = LoadText,
                       .blobs = {.max_bytes = 1, .remote = remote, .remote_name = "store"},
                       .unix_ms = [] { return int64_t{1}; }});
  for (const char* name : {"one", "two"}) {  // the disk has room for one
    ASSERT_TRUE(cached->Register(name, name, "default").ok());
  }
  const Digest one = Sha256Of("one");
  bool gone_meanwhile = false;
  remote->fails = [&](const std::string& call) {
    if (call == "remove") return FakeObjectStore::Failure(absl::StatusCode::kUnavailable);
    if (call == "get") {
      EXPECT_TRUE(cached->Unregister("one", "default").ok());
      cached->WhenGone(one, [&](bool gone) { gone_meanwhile = gone; });
      EXPECT_TRUE(gone_meanwhile);
    }
    return absl::OkStatus();
  };
  EXPECT_TRUE(absl::IsNotFound(cached->ReadContent(one).status()));
  EXPECT_TRUE(gone_meanwhile);
  cached->AwaitRemovals();
  EXPECT_FALSE(cached->IsOnDisk(one));
  EXPECT_FALSE(fs::exists(base_ / "cached/blobs" / one.Hex()));
}

}  // namespace
}  // namespace rootstock
