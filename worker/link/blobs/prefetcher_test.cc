// Where content is looked for, and for whom it ends.
#include "worker/link/blobs/prefetcher.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/link/blobs/blob_rig.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

fs::path TemporaryDir() {
  return fs::temp_directory_path() / absl::StrCat("prefetcher.", getpid(), ".", std::rand());
}

// Gives what it is asked for when its gate opens.
class GatedSource : public BlobSource {
 public:
  FetchSource kind() const override { return FetchSource::kCoordinator; }
  absl::Status Fetch(const Digest& digest, const BlobSink& sink) override {
    entered.at(digest).set_value();
    gates.at(digest).get_future().wait();
    const std::string& content = contents.at(digest);
    if (content == "absent") return absl::NotFoundError("no such content");
    RETURN_IF_ERROR(sink.begin(content.size()));
    return sink.write(content);
  }
  void Cancel() override {}
  std::map<Digest, std::string> contents;
  std::map<Digest, std::promise<void>> entered, gates;
};

// Command ids begin anew at an attach; a fetch of before may end after it.
TEST(Prefetcher, AnEarlierAttachsFetchIsNoOutcomeOfALaterOne) {
  const fs::path dir = TemporaryDir();
  BlobCache cache(dir, 1 << 20);
  GatedSource source;
  const Digest old = Sha256Of("old");
  const Digest fresh = Sha256Of("fresh");
  source.contents = {{old, "absent"}, {fresh, "fresh"}};
  for (const Digest& digest : {old, fresh}) {
    source.entered[digest];
    source.gates[digest];
  }
  std::atomic<int> ended = 0;
  Prefetcher prefetcher(cache, {&source}, [&] {
    ++ended;
    ended.notify_all();
  });
  prefetcher.Start(CommandId(1), old);
  source.entered.at(old).get_future().wait();
  prefetcher.ForgetAll();
  prefetcher.Start(CommandId(1), fresh);
  source.gates[old].set_value();
  ended.wait(0);
  EXPECT_FALSE(prefetcher.OutcomeOf(CommandId(1)).has_value());
  source.gates[fresh].set_value();
  ended.wait(1);
  EXPECT_TRUE(prefetcher.OutcomeOf(CommandId(1))->ok());
  fs::remove_all(dir);
}

// Calls it on a thread for which a relative path leads nowhere, as a disk that hangs.
void WithoutTheDisk(const std::function<void()>& call) {
  std::thread([&] {
    ASSERT_EQ(unshare(CLONE_FS), 0);
    fs::current_path("/");
    call();
  }).join();
}

// However many stand still.
TEST(Prefetcher, WhatIsOnTheDiskWaitsForNoFetch) {
  const fs::path dir = TemporaryDir().filename();
  BlobCache cache(dir, 1 << 20);
  GatedSource source;
  std::vector<Digest> slow;
  for (size_t i = 0; i <= Prefetcher::kMostFetches; ++i) {
    slow.push_back(Sha256Of(absl::StrCat(i)));
    source.contents[slow.back()] = "absent";
    source.gates[slow.back()];
    source.entered[slow.back()];
  }
  const Digest spoilt = Sha256Of("spoilt");
  source.contents[spoilt] = "spoilt";
  source.gates[spoilt];
  source.entered[spoilt];
  fs::create_directories(dir);
  std::ofstream(dir / Sha256Of("here").Hex()) << "here";
  std::ofstream(dir / spoilt.Hex()) << "spoild";
  std::promise<void> ended;
  std::atomic<bool> first = true;
  {
    Prefetcher prefetcher(cache, {&source}, [&] {
      if (first.exchange(false)) ended.set_value();
    });
    for (size_t i = 0; i < slow.size(); ++i) prefetcher.Start(CommandId(i + 1), slow[i]);
    // Its threads began with the test's working directory.
    WithoutTheDisk([&] { prefetcher.Start(CommandId(100), Sha256Of("here")); });
    EXPECT_EQ(ended.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
    const auto here = prefetcher.OutcomeOf(CommandId(100));
    EXPECT_TRUE(here && here->ok() && (*here)->source == FetchSource::kDisk);
    // Its place is with those that are fetched.
    prefetcher.Start(CommandId(101), spoilt);
    for (const Digest& digest : slow) source.gates[digest].set_value();
    source.entered.at(spoilt).get_future().wait();
    source.gates[spoilt].set_value();
  }
  EXPECT_TRUE(ReadAll(cache, spoilt).ok());
  fs::remove_all(dir);
}

// Its file is there, for as long as nothing has replaced it.
TEST(Prefetcher, WhatIsSpoiltAndOnItsWayHoldsUpNobodyElse) {
  const fs::path dir = TemporaryDir();
  BlobCache cache(dir, 1 << 20);
  GatedSource source;
  const Digest spoilt = Sha256Of("spoilt");
  source.contents[spoilt] = "spoilt";
  source.gates[spoilt];
  source.entered[spoilt];
  fs::create_directories(dir);
  std::ofstream(dir / Sha256Of("here").Hex()) << "here";
  std::ofstream(dir / spoilt.Hex()) << "spoild";
  std::promise<void> ended;
  std::atomic<bool> first = true;
  {
    Prefetcher prefetcher(cache, {&source}, [&] {
      if (first.exchange(false)) ended.set_value();
    });
    prefetcher.Start(CommandId(1), spoilt);
    source.entered.at(spoilt).get_future().wait();
    for (size_t i = 0; i < Prefetcher::kMostDiskReads; ++i) {
      prefetcher.Start(CommandId(2 + i), spoilt);
    }
    prefetcher.Start(CommandId(100), Sha256Of("here"));
    EXPECT_EQ(ended.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
    EXPECT_TRUE(prefetcher.OutcomeOf(CommandId(100)).has_value());
    source.gates[spoilt].set_value();
  }
  fs::remove_all(dir);
}

TEST(Prefetcher, AUseThatReadsNoFileIsToldByAThreadOfItsOwn) {
  const fs::path dir = TemporaryDir().filename();
  fs::create_directories(dir);
  const fs::path here = dir / Sha256Of("here").Hex();
  std::ofstream(here) << "here";
  std::ofstream(dir / Sha256Of("other").Hex()) << "other";
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  {
    BlobCache cache(dir, 1 << 20);
    GatedSource source;
    std::atomic<int> ended = 0;
    Prefetcher prefetcher(cache, {&source}, [&] {
      ++ended;
      ended.notify_all();
    });
    prefetcher.Start(CommandId(1), Sha256Of("other"));
    ended.wait(0);
    fs::last_write_time(here, long_ago);
    WithoutTheDisk([&] {
      prefetcher.Touch(Sha256Of("here"));
      prefetcher.Start(CommandId(2), Sha256Of("other"));  // behind the touch
    });
    ended.wait(1);
    EXPECT_TRUE(prefetcher.OutcomeOf(CommandId(2))->ok());
  }
  EXPECT_GT(fs::last_write_time(here), long_ago + std::chrono::minutes(30));
  fs::remove_all(dir);
}

// Answers each fetch alike.
class PlainSource : public BlobSource {
 public:
  PlainSource(FetchSource kind, absl::Status status, std::string content = "")
      : kind_(kind), status_(std::move(status)), content_(std::move(content)) {}
  FetchSource kind() const override { return kind_; }
  absl::Status Fetch(const Digest&, const BlobSink& sink) override {
    ++fetches;
    RETURN_IF_ERROR(status_);
    RETURN_IF_ERROR(sink.begin(content_.size()));
    return sink.write(content_);
  }
  void Cancel() override { ++cancels; }
  std::atomic<int> fetches = 0, cancels = 0;

 private:
  const FetchSource kind_;
  const absl::Status status_;
  const std::string content_;
};

// The outcome of "content" from an object store, then the coordinator.
absl::StatusOr<CachedBlob> FetchFrom(PlainSource& objects, PlainSource& coordinator,
                                     uint64_t budget = 1 << 20,
                                     const fs::path& dir = TemporaryDir(), uint64_t bytes = 0) {
  absl::StatusOr<CachedBlob> out;
  {
    BlobCache cache(dir, budget);
    std::atomic<int> ended = 0;
    Prefetcher prefetcher(cache, {&objects, &coordinator}, [&] {
      ++ended;
      ended.notify_all();
    });
    prefetcher.Start(CommandId(1), Sha256Of("content"), bytes);
    ended.wait(0);
    out = *prefetcher.OutcomeOf(CommandId(1));
  }
  fs::remove_all(dir);
  return out;
}

TEST(Prefetcher, TheObjectStoreGoesFirstAndTheCoordinatorIsNotAsked) {
  PlainSource objects(FetchSource::kObject, absl::OkStatus(), "content");
  PlainSource coordinator(FetchSource::kCoordinator, absl::OkStatus(), "content");
  const auto got = FetchFrom(objects, coordinator);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->source, FetchSource::kObject);
  EXPECT_EQ(coordinator.fetches, 0);
  EXPECT_EQ(objects.cancels, 1);
  EXPECT_EQ(coordinator.cancels, 1);
}

TEST(Prefetcher, WhatTheObjectStoreLacksSpoilsOrRefusesComesFromTheCoordinator) {
  for (const auto& [status, content] : std::map<std::string, std::pair<absl::Status, std::string>>{
           {"absent", {absl::NotFoundError("absent"), ""}},
           {"down", {absl::UnavailableError("down"), ""}},
           {"refused", {absl::PermissionDeniedError("refused"), ""}},
           {"spoilt", {absl::OkStatus(), "contend"}}}) {
    PlainSource objects(FetchSource::kObject, content.first, content.second);
    PlainSource coordinator(FetchSource::kCoordinator, absl::OkStatus(), "content");
    const auto got = FetchFrom(objects, coordinator);
    ASSERT_TRUE(got.ok()) << status << got.status();
    EXPECT_EQ(got->source, FetchSource::kCoordinator) << status;
    EXPECT_EQ(objects.fetches, 1);
  }
}

// It has looked at its own copy since.
TEST(Prefetcher, WhatTheCoordinatorHasSpoiltIsAskedForOnceMore) {
  class Healing : public PlainSource {
   public:
    Healing() : PlainSource(FetchSource::kCoordinator, absl::OkStatus(), "content") {}
    absl::Status Fetch(const Digest& digest, const BlobSink& sink) override {
      if (fetches > 0) return PlainSource::Fetch(digest, sink);
      ++fetches;
      RETURN_IF_ERROR(sink.begin(7));
      return sink.write("contend");
    }
  } coordinator;
  PlainSource objects(FetchSource::kObject, absl::UnavailableError("down"));
  const auto got = FetchFrom(objects, coordinator);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(coordinator.fetches, 2);
  EXPECT_EQ(objects.fetches, 1);
}

TEST(Prefetcher, WhereNobodyHasItTheCoordinatorsWordCounts) {
  PlainSource objects(FetchSource::kObject, absl::UnavailableError("down"));
  PlainSource coordinator(FetchSource::kCoordinator, absl::DataLossError("lost"));
  EXPECT_EQ(FetchFrom(objects, coordinator).status(), absl::DataLossError("lost"));
}

// FAULTS F10's wrong length: the next one's size decides whether there is room.
TEST(Prefetcher, AnObjectThatIsTooLargeComesFromTheCoordinator) {
  PlainSource objects(FetchSource::kObject, absl::OkStatus(), std::string(1000, 'x'));
  PlainSource coordinator(FetchSource::kCoordinator, absl::OkStatus(), "content");
  const auto got = FetchFrom(objects, coordinator, /*budget=*/100);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->source, FetchSource::kCoordinator);
}

TEST(Prefetcher, ADiskThatFailsIsNoReasonToAskAnybody) {
  const fs::path dir = TemporaryDir();
  fs::create_directories(dir);
  const fs::path loop = dir / Sha256Of("content").Hex();
  fs::create_symlink(loop, loop);  // can't be opened
  PlainSource objects(FetchSource::kObject, absl::OkStatus(), "content");
  PlainSource coordinator(FetchSource::kCoordinator, absl::OkStatus(), "content");
  InitLogging("test", LogLevel::kWarning);  // to stderr
  testing::internal::CaptureStderr();
  const auto got = FetchFrom(objects, coordinator, /*budget=*/100, dir);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(log.find("comes from elsewhere"), std::string::npos) << log;  // none of them is blamed
  EXPECT_NE(log.find(loop.string()), std::string::npos) << log;           // as clients don't hear
  EXPECT_EQ(got.status().message().find(dir.string()), std::string::npos) << got.status();
  EXPECT_EQ(GetErrorDetail(got.status())->reason, Reason::kIoError);
  EXPECT_EQ(objects.fetches + coordinator.fetches, 0);
}

// The content's size is known: no source can be blamed for it.
TEST(Prefetcher, ADiskWithoutRoomForWhatIsKnownToComeAsksOnlyOne) {
  PlainSource objects(FetchSource::kObject, absl::OkStatus(), "content");
  PlainSource coordinator(FetchSource::kCoordinator, absl::OkStatus(), "content");
  const auto got = FetchFrom(objects, coordinator, /*budget=*/3, TemporaryDir(), /*bytes=*/7);
  EXPECT_EQ(got.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(objects.fetches, 1);
  EXPECT_EQ(coordinator.fetches, 0);
}

TEST(Prefetcher, AnObjectOfAnotherSizeComesFromTheCoordinator) {
  PlainSource objects(FetchSource::kObject, absl::OkStatus(), "contents");
  PlainSource coordinator(FetchSource::kCoordinator, absl::OkStatus(), "content");
  const auto got = FetchFrom(objects, coordinator, /*budget=*/100, TemporaryDir(), /*bytes=*/7);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->source, FetchSource::kCoordinator);
}

TEST(Prefetcher, ADiskWithoutRoomIsToldWhoeverHasIt) {
  PlainSource objects(FetchSource::kObject, absl::OkStatus(), "content");
  PlainSource coordinator(FetchSource::kCoordinator, absl::OkStatus(), "content");
  const auto got = FetchFrom(objects, coordinator, /*budget=*/3);
  EXPECT_EQ(got.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetErrorDetail(got.status())->reason, Reason::kTooLarge);
}

}  // namespace
}  // namespace rootstock
