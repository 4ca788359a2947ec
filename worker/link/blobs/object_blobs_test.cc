// Content out of an object store: a directory, and one that fails when told.
#include "worker/link/blobs/object_blobs.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/link/blobs/blob_rig.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

class ObjectBlobsTest : public testing::Test {
 protected:
  ObjectBlobsTest()
      : dir_(fs::temp_directory_path() / absl::StrCat("objects.", getpid(), ".", std::rand())) {
    fs::create_directories(dir_ / "store/blobs");
  }
  ~ObjectBlobsTest() override { fs::remove_all(dir_); }
  // As the coordinator stores content of that digest.
  void Put(const Digest& digest, const std::string& bytes) const {
    std::ofstream(dir_ / "store/blobs" / digest.Hex(), std::ios::binary) << bytes;
  }
  std::string Uri() const { return "file://" + (dir_ / "store").string(); }

  const fs::path dir_;
};

TEST_F(ObjectBlobsTest, GivesWhatTheCoordinatorStored) {
  const std::string content(3 << 20, 'c');
  Put(Sha256Of(content), content);
  const auto objects = *ObjectBlobs::Open(Uri());
  BlobCache cache(dir_ / "cache", uint64_t{1} << 30);
  const auto got = cache.Ensure(Sha256Of(content), *objects);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->source, FetchSource::kObject);
  EXPECT_EQ(got->bytes, content.size());
  EXPECT_TRUE(ReadAll(cache, Sha256Of(content)).ok());
}

TEST_F(ObjectBlobsTest, WhatIsAbsentOrSpoiltIsToldAndNotKept) {
  const auto objects = *ObjectBlobs::Open(Uri());
  BlobCache cache(dir_ / "cache", uint64_t{1} << 30);
  EXPECT_TRUE(absl::IsNotFound(cache.Ensure(Sha256Of("absent"), *objects).status()));
  Put(Sha256Of("content"), "contend");
  const absl::Status spoilt = cache.Ensure(Sha256Of("content"), *objects).status();
  EXPECT_EQ(GetErrorDetail(spoilt)->reason, Reason::kDigestMismatch) << spoilt;
  EXPECT_TRUE(cache.List().empty());
  objects->Cancel();
  Put(Sha256Of("content"), "content");
  EXPECT_TRUE(absl::IsCancelled(cache.Ensure(Sha256Of("content"), *objects).status()));
}

// Fails in Size with what it is told.
class FailingStore : public ObjectStore {
 public:
  FailingStore(absl::Status& status, int& calls) : status_(status), calls_(calls) {}
  absl::StatusOr<uint64_t> Size(const std::string&) override {
    ++calls_;
    RETURN_IF_ERROR(status_);
    return 1;
  }
  absl::Status Get(const std::string&, uint64_t, const Sink& sink) override { return sink("1"); }
  absl::Status Put(const std::string&, const fs::path&) override { return absl::OkStatus(); }
  absl::Status Remove(const std::string&) override { return absl::OkStatus(); }
  void Cancel() override {}

 private:
  absl::Status& status_;
  int& calls_;
};

TEST(ObjectBlobsPause, AStoreThatIsDownIsLeftAloneForAWhile) {
  absl::Status status = absl::NotFoundError("absent");
  absl::Status of_sink;
  absl::Time now = absl::UnixEpoch();
  int calls = 0;
  ObjectBlobs objects(std::make_unique<FailingStore>(status, calls), [&] { return now; });
  const BlobSink sink{[](uint64_t) { return absl::OkStatus(); },
                      [&](std::string_view) { return of_sink; }};
  const auto fetch = [&] { return objects.Fetch(Sha256Of("1"), sink).code(); };
  EXPECT_EQ(fetch(), absl::StatusCode::kNotFound);
  status = absl::OkStatus();
  of_sink = absl::UnavailableError("this node's disk");
  EXPECT_EQ(fetch(), absl::StatusCode::kUnavailable);
  of_sink = absl::OkStatus();
  EXPECT_EQ(fetch(), absl::StatusCode::kOk);
  EXPECT_EQ(calls, 3);  // neither was a reason to leave it alone
  status = absl::DeadlineExceededError("stalled");
  EXPECT_EQ(fetch(), absl::StatusCode::kDeadlineExceeded);
  status = absl::OkStatus();
  EXPECT_EQ(fetch(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(calls, 4);
  now += ObjectBlobs::kPause;
  EXPECT_EQ(fetch(), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace rootstock
