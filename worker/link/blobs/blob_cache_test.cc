// The disk tier of a node, within its budget and between its processes.
#include "worker/link/blobs/blob_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker/link/blobs/blob_rig.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

TEST_F(BlobCacheTest, FetchesOnceAndReplacesWhatIsSpoilt) {
  BlobCache cache(dir_, 1 << 20);
  const Digest a = Add('a');
  const auto first = cache.Ensure(a, source_);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->source, FetchSource::kObject);
  EXPECT_EQ(first->bytes, 1000u);
  EXPECT_EQ(cache.Ensure(a, source_)->source, FetchSource::kDisk);
  EXPECT_EQ(source_.fetches, 1);
  std::ofstream(cache.PathOf(a)) << "truncated";
  EXPECT_EQ(cache.Ensure(a, source_)->source, FetchSource::kObject);
  EXPECT_EQ(*ReadAll(cache, a), std::string(1000, 'a'));
  // A process that starts trusts no file that it has not read.
  std::ofstream(cache.PathOf(a)) << std::string(1000, 'b');
  EXPECT_EQ(BlobCache(dir_, 1 << 20).Ensure(a, source_)->source, FetchSource::kObject);
  EXPECT_EQ(*cache.Remove(a), 1000u);
  EXPECT_EQ(*cache.Remove(a), 0u);
}

TEST_F(BlobCacheTest, AFlippedBitIsFoundWhenItIsReadAndFetchedAgain) {
  BlobCache cache(dir_, 1 << 20);
  const Digest a = Add('a');
  ASSERT_TRUE(Ensure(cache, a));
  std::string spoilt(1000, 'a');
  spoilt[500] ^= 1;
  std::ofstream(cache.PathOf(a), std::ios::binary) << spoilt;
  const absl::Status status = ReadAll(cache, a).status();
  EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kDigestMismatch) << status;
  EXPECT_EQ(ReadAll(cache, a).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Ensure(cache, a));
  EXPECT_TRUE(ReadAll(cache, a).ok());
}

// It takes the place of what was spoilt, and of a pin's file.
TEST_F(BlobCacheTest, APinOutlivesASpoiltFile) {
  BlobCache cache(dir_, 1500);
  const Digest a = Add('a'), b = Add('b');
  ASSERT_TRUE(Ensure(cache, a));
  cache.Pin(a, true);
  std::ofstream(cache.PathOf(a)) << "spoilt";
  EXPECT_FALSE(ReadAll(cache, a).ok());
  EXPECT_FALSE(cache.TakeChanges().back().present);
  ASSERT_TRUE(Ensure(cache, a));
  EXPECT_FALSE(Ensure(cache, b));
  EXPECT_TRUE(ReadAll(cache, a).ok());
}

TEST_F(BlobCacheTest, BadContentLeavesNothing) {
  BlobCache cache(dir_, 1 << 20);
  const Digest a = Add('a');
  source_.said_bytes = 2000;
  EXPECT_EQ(GetErrorDetail(cache.Ensure(a, source_).status())->reason, Reason::kTruncated);
  source_.said_bytes = 999;
  EXPECT_EQ(GetErrorDetail(cache.Ensure(a, source_).status())->reason, Reason::kTruncated);
  source_.said_bytes = 0;
  source_.contents[a] = std::string(1000, 'b');
  EXPECT_EQ(GetErrorDetail(cache.Ensure(a, source_).status())->reason, Reason::kDigestMismatch);
  EXPECT_EQ(FileCount(), 0u);
  EXPECT_FALSE(Ensure(cache, Sha256Of("absent")));
  std::ofstream(dir_ / "file") << "a file";
  const absl::Status status = BlobCache(dir_ / "file/sub", 1 << 20).Ensure(a, source_).status();
  EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kIoError);
}

TEST_F(BlobCacheTest, NothingLeavesForASizeThatIsNotTheContents) {
  BlobCache cache(dir_, 1500);
  const Digest a = Add('a'), b = Add('b');
  ASSERT_TRUE(Ensure(cache, a));
  source_.said_bytes = 1400;
  const absl::Status wrong = cache.Ensure(b, source_, 1000).status();
  EXPECT_EQ(GetErrorDetail(wrong)->reason, Reason::kTruncated) << wrong;
  EXPECT_TRUE(fs::exists(cache.PathOf(a)));
  source_.said_bytes = 1000;
  EXPECT_TRUE(cache.Ensure(b, source_, 1000).ok());
}

TEST_F(BlobCacheTest, TheLeastRecentlyUsedGoes) {
  BlobCache cache(dir_, 3500);
  const Digest a = Add('a'), b = Add('b'), c = Add('c'), d = Add('d');
  for (const Digest& digest : {a, b, c}) ASSERT_TRUE(Ensure(cache, digest));
  Age(cache, a, 30);
  Age(cache, b, 20);
  Age(cache, c, 10);
  EXPECT_TRUE(ReadAll(cache, a).ok());  // a use
  cache.TakeChanges();
  ASSERT_TRUE(Ensure(cache, d));
  EXPECT_FALSE(fs::exists(cache.PathOf(b)));
  EXPECT_TRUE(fs::exists(cache.PathOf(a)));
  EXPECT_EQ(FileCount(), 3u);
  EXPECT_EQ(cache.TakeChanges(), (std::vector<TierChange>{{{b, Tier::kDisk, 1000}, false},
                                                          {{d, Tier::kDisk, 1000}, true}}));
}

// FAULTS F9: what lies there counts, and serves, after a restart.
TEST_F(BlobCacheTest, F9ARestartFindsWhatIsThere) {
  const Digest a = Add('a'), b = Add('b'), c = Add('c');
  {
    BlobCache cache(dir_, 2500);
    ASSERT_TRUE(Ensure(cache, a) && Ensure(cache, b));
    Age(cache, a, 5);
  }
  BlobCache cache(dir_, 2500);
  EXPECT_EQ(cache.List().size(), 2u);
  EXPECT_EQ(cache.Ensure(b, source_)->source, FetchSource::kDisk);
  ASSERT_TRUE(Ensure(cache, c));
  EXPECT_FALSE(fs::exists(cache.PathOf(a)));
}

TEST_F(BlobCacheTest, WhatIsLeasedOrPinnedStaysWhicheverProcessWantsRoom) {
  const Digest a = Add('a'), b = Add('b'), c = Add('c');
  BlobCache cache(dir_, 2500);
  auto lease = cache.Ensure(a, source_);
  ASSERT_TRUE(lease.ok() && Ensure(cache, b));
  cache.Pin(b, true);
  const auto other = [&] {
    BlobCache theirs(dir_, 2500);
    const absl::Status status = theirs.Ensure(c, source_).status();
    if (status.ok()) return 0;
    return status.code() == absl::StatusCode::kResourceExhausted ? 1 : 2;
  };
  EXPECT_EQ(InAnotherProcess(other), 1);
  lease = absl::CancelledError();
  EXPECT_EQ(InAnotherProcess(other), 0);
  EXPECT_FALSE(fs::exists(cache.PathOf(a)));
  EXPECT_TRUE(fs::exists(cache.PathOf(b)));
  cache.Pin(b, false);
  cache.Pin(a, true);  // before it is there
  ASSERT_TRUE(Ensure(cache, a));
  EXPECT_FALSE(fs::exists(cache.PathOf(b)) && fs::exists(cache.PathOf(c)));
  EXPECT_TRUE(Ensure(cache, b) && Ensure(cache, c));
  EXPECT_TRUE(fs::exists(cache.PathOf(a)));
}

TEST_F(BlobCacheTest, NoRoomIsAnErrorWithTheNumbersForThatContentAlone) {
  BlobCache cache(dir_, 1500);
  const Digest a = Add('a'), large = source_.Add(std::string(2000, 'l'));
  ASSERT_TRUE(Ensure(cache, a));
  const absl::Status status = cache.Ensure(large, source_).status();
  // It never fits: nothing that passes, so nothing to try again.
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kTooLarge);
  EXPECT_EQ(GetErrorDetail(status)->field, "disk-cache-bytes");
  EXPECT_NE(status.message().find("2000"), std::string::npos) << status;
  EXPECT_TRUE(ReadAll(cache, a).ok());  // nothing was evicted in vain
  const auto leased = cache.Ensure(a, source_);
  const absl::Status taken = cache.Ensure(Add('b'), source_).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(taken.message().find("no room for 1000 bytes: 1000"), std::string::npos) << taken;
}

// Content of any size, none of which comes.
class Huge : public BlobSource {
 public:
  absl::Status Fetch(const Digest&, const BlobSink& sink) override {
    return sink.begin(uint64_t{1} << 60);
  }
  FetchSource kind() const override { return FetchSource::kCoordinator; }
  void Cancel() override {}
};

// The disk may have room again.
TEST_F(BlobCacheTest, WhatADiskHasNoRoomForIsNotRefusedForGood) {
  BlobCache cache(dir_, 0);
  Huge huge;
  const absl::Status status = cache.Ensure(source_.Add("x"), huge).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find("half of what the disk has free is less"), std::string::npos);
}

// Clients hear it: where a node keeps its files is not theirs.
TEST_F(BlobCacheTest, ADisksErrorDoesNotSayWhereTheCacheIs) {
  std::ofstream(dir_.string()) << "a file where the directory should be";
  BlobCache cache(dir_, 1500);
  const absl::Status status = cache.Ensure(Add('a'), source_).status();
  EXPECT_TRUE(IsDiskError(status)) << status;
  EXPECT_EQ(status.message().find(dir_.string()), std::string::npos) << status;
}

TEST_F(BlobCacheTest, ADirectoryThatTakesNoFilesIsFoundOutBeforeItIsUsed) {
  EXPECT_TRUE(CheckTakesFiles(dir_ / "new" / "deep").ok());
  EXPECT_TRUE(fs::is_empty(dir_ / "new" / "deep"));
  std::ofstream(dir_ / "file") << "x";
  for (const fs::path& bad : {fs::path("/proc"), fs::path("/proc/xx"), dir_ / "file"}) {
    const absl::Status status = CheckTakesFiles(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << bad;
    EXPECT_NE(status.message().find("cache-dir=" + bad.string() + ": takes no files: "),
              std::string::npos)
        << status;
  }
}

// What is on its way counts as what is there.
TEST_F(BlobCacheTest, DownloadsReserveTheirRoom) {
  BlobCache cache(dir_, 1500);
  const Digest a = Add('a'), b = Add('b');
  absl::Status within;
  bool first = true;
  source_.during = [&] {
    if (!std::exchange(first, false)) return;
    within = BlobCache(dir_, 1500).Ensure(b, source_).status();
  };
  EXPECT_TRUE(Ensure(cache, a));
  EXPECT_EQ(within.code(), absl::StatusCode::kResourceExhausted) << within;
}

}  // namespace
}  // namespace rootstock
