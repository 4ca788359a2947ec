#include "coordinator/adapters/lazy_adapters.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "coordinator/adapters/registry_fixture.h"
#include "coordinator/content/adapter_sources.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

// A store with directories of the two files that are fetched; content is the weights' text.
class LazyAdaptersTest : public testing::Test {
 protected:
  void SetUp() override {
    base_ = fs::path(testing::TempDir()) /
            (std::string("lazy_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(base_);
    Add("pirate", "arr");
    Add("other-tenant/pirate", "yarr");
    const auto room = [this] {  // is looked at as bytes come
      ++looks_;
      if (auto during = std::exchange(during_, {})) during();
      return uint64_t{1} << 40;
    };
    sources_ = *AdapterSources::Open(base_ / "scratch", {.own = {Store()}, .room = room});
    registry_ = *Registry::Open({.data_dir = base_ / "data",
                                 .sources = sources_.get(),
                                 .base_name = "base-model",
                                 .loader =
                                     [this](const fs::path& directory) {
                                       ++loads_;
                                       fs::copy_file(directory / "adapter_model.safetensors",
                                                     directory / "text");
                                       return LoadText(directory);
                                     },
                                 .unix_ms = [] { return int64_t{1}; }});
    lazy_ = std::make_unique<LazyAdapters>(
        registry_.get(), Store(), [this] { return now_; },
        [this](std::function<void()> job) {
          jobs_.push_back(std::move(job));
          return !full_;
        });
  }
  StoreUri Store() const { return *ParseStoreUri("file://" + (base_ / "store").string()); }
  void Add(const std::string& name, const std::string& text) const {
    fs::create_directories(base_ / "store" / name);
    std::ofstream(base_ / "store" / name / "adapter_config.json") << "{}";
    std::ofstream(base_ / "store" / name / "adapter_model.safetensors") << text;
  }
  void RunJobs() {
    for (const auto& job : std::exchange(jobs_, {})) job();
  }
  absl::Status Fetch(const std::string& model, const std::string& tenant) {
    absl::Status got = absl::UnknownError("not done");
    lazy_->Fetch(model, tenant, [&](const absl::Status& status) { got = status; });
    RunJobs();
    return got;
  }
  Digest DigestOf(const std::string& model, const std::string& tenant) const {
    return registry_->Resolve(model, tenant, "r")->content->digest;
  }

  fs::path base_;
  std::unique_ptr<AdapterSources> sources_;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<LazyAdapters> lazy_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::vector<std::function<void()>> jobs_;
  bool full_ = false;
  std::atomic<int> looks_ = 0, loads_ = 0;
  std::function<void()> during_;  // the next fetch
};

TEST_F(LazyAdaptersTest, RegistersANameAtItsFirstUse) {
  EXPECT_TRUE(lazy_->MayHold("pirate", "default"));
  EXPECT_EQ(Fetch("pirate", "default"), absl::OkStatus());
  EXPECT_EQ(DigestOf("pirate", "default"), Sha256Of("arr"));
  EXPECT_FALSE(lazy_->MayHold("pirate", "default"));
  EXPECT_EQ(Fetch("pirate", "default"), absl::OkStatus());
  EXPECT_EQ(loads_, 1);
}

TEST_F(LazyAdaptersTest, ATenantSeesItsOwnFolder) {
  EXPECT_EQ(Fetch("pirate", "other-tenant"), absl::OkStatus());
  EXPECT_EQ(DigestOf("pirate", "other-tenant"), Sha256Of("yarr"));
  EXPECT_TRUE(absl::IsNotFound(Fetch("pirate", "third")));
  // The folder of a tenant is no adapter of the default one.
  EXPECT_TRUE(absl::IsNotFound(Fetch("other-tenant", "default")));
}

TEST_F(LazyAdaptersTest, LooksAgainForWhatWasMissingAfterAWhile) {
  EXPECT_TRUE(absl::IsNotFound(Fetch("late", "default")));
  EXPECT_FALSE(lazy_->MayHold("late", "default"));
  now_ += absl::Seconds(11);
  EXPECT_TRUE(lazy_->MayHold("late", "default"));
  Add("late", "here");
  EXPECT_EQ(Fetch("late", "default"), absl::OkStatus());
}

TEST_F(LazyAdaptersTest, NamesThatCanBeNoKeysAreNotLookedFor) {
  for (const char* model : {"../x", "a/b", "", "UPPER", "pirate@2", "base-model"}) {
    EXPECT_FALSE(lazy_->MayHold(model, "default")) << model;
  }
  for (const char* tenant : {"..", "a/b", ""}) {
    EXPECT_FALSE(lazy_->MayHold("pirate", tenant)) << tenant;
  }
}

TEST_F(LazyAdaptersTest, ARefusalIsToldAndNotFetchedAgainForAWhile) {
  Add("spoilt", "bad");
  EXPECT_EQ(GetErrorDetail(Fetch("spoilt", "default"))->reason, Reason::kNonfinite);
  EXPECT_TRUE(lazy_->MayHold("spoilt", "default"));  // so that its requests hear why
  EXPECT_EQ(GetErrorDetail(Fetch("spoilt", "default"))->reason, Reason::kNonfinite);
  EXPECT_EQ(loads_, 1);
  now_ += absl::Seconds(11);
  EXPECT_EQ(GetErrorDetail(Fetch("spoilt", "default"))->reason, Reason::kNonfinite);
  EXPECT_EQ(loads_, 1);
  now_ += absl::Seconds(50);
  Add("spoilt", "mended");
  EXPECT_EQ(Fetch("spoilt", "default"), absl::OkStatus());
}

TEST_F(LazyAdaptersTest, ManyRequestsOfANameTakeOneJob) {
  std::vector<absl::Status> heard;
  const auto hear = [&](const absl::Status& status) { heard.push_back(status); };
  for (int i = 0; i < 5; ++i) lazy_->Fetch("pirate", "default", hear);
  lazy_->Fetch("pirate", "other-tenant", hear);
  EXPECT_EQ(jobs_.size(), 2u);
  RunJobs();
  EXPECT_EQ(heard, std::vector<absl::Status>(6, absl::OkStatus()));
  full_ = true;
  lazy_->Fetch("late", "default", hear);
  EXPECT_EQ(heard.back().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(LazyAdaptersTest, WhoIsForgottenHearsNothing) {
  std::vector<int> heard;
  const auto wait = [&](int who) {
    return lazy_->Fetch("pirate", "default",
                        [&heard, who](const absl::Status&) { heard.push_back(who); });
  };
  const uint64_t first = wait(1);
  wait(2);
  lazy_->Forget("pirate", "default", first);
  wait(3);
  EXPECT_EQ(jobs_.size(), 1u);
  RunJobs();
  EXPECT_EQ(heard, (std::vector<int>{2, 3}));
  lazy_->Forget("pirate", "default", first);  // no harm
}

TEST_F(LazyAdaptersTest, AFetchThatNobodyWaitsForAnyMoreIsStillTheOnlyOne) {
  lazy_->Forget("pirate", "default",
                lazy_->Fetch("pirate", "default", [](const auto&) { FAIL(); }));
  bool heard = false;
  lazy_->Fetch("pirate", "default", [&](const absl::Status& status) { heard = status.ok(); });
  EXPECT_EQ(jobs_.size(), 1u);
  RunJobs();
  EXPECT_TRUE(heard);
}

// Whoever tries again while a store stands still takes two threads, not all.
TEST_F(LazyAdaptersTest, FetchesOfANameAreFewAndNoOtherRegistrationOfItWaitsForThem) {
  const auto fetch = [this] {
    return registry_->RegisterOwnUri("pirate", Store().ToString() + "/pirate", "default").status();
  };
  fs::create_directories(base_ / "local");
  std::ofstream(base_ / "local/text") << "arr";
  absl::Status second, third, local;
  during_ = [&] {
    during_ = [&] {
      third = fetch();
      local =
          registry_
              ->RegisterFrom("pirate", "default", false, [&] { return LoadText(base_ / "local"); })
              .status();
    };
    second = fetch();
  };
  EXPECT_EQ(fetch(), absl::OkStatus());
  EXPECT_EQ(second, absl::OkStatus());
  EXPECT_EQ(third.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(third)->reason, Reason::kQueueFull);
  EXPECT_EQ(local, absl::OkStatus());
  EXPECT_EQ(fetch(), absl::OkStatus());
}

// Or one that has been read, and holds memory, waits for the name's turn, and one that has the turn
// for memory.
TEST_F(LazyAdaptersTest, WhatWasFetchedIsReadInTheNamesTurn) {
  fs::create_directories(base_ / "local");
  std::ofstream(base_ / "local/text") << "arr";
  std::thread fetching;
  absl::Status fetched;
  const auto in_turn = [&] {
    fetching = std::thread([&] {
      fetched =
          registry_->RegisterOwnUri("pirate", Store().ToString() + "/pirate", "default").status();
    });
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    // Two files, of each its size and its bytes.
    while (looks_ < 4 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_EQ(looks_, 4);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_EQ(loads_, 0);
    return LoadText(base_ / "local");
  };
  EXPECT_TRUE(registry_->RegisterFrom("pirate", "default", false, in_turn).ok());
  fetching.join();
  EXPECT_EQ(fetched, absl::OkStatus());
  EXPECT_EQ(loads_, 1);
}

TEST_F(LazyAdaptersTest, ClientsMayNameNothingInTheCoordinatorsOwnStore) {
  for (const std::string& uri : {Store().ToString() + "/other-tenant/pirate",
                                 Store().ToString() + "/pirate", std::string("file:///etc/x")}) {
    const auto named = registry_->Register("mine", uri, "default");
    EXPECT_EQ(GetErrorDetail(named.status())->reason, Reason::kPathInvalid) << uri;
  }
}

}  // namespace
}  // namespace rootstock
