#include "coordinator/content/blob_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <sstream>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/content/fake_object_store.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class BlobStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "blobs-XXXXXX").string();
    dir_ = mkdtemp(name.data());
  }
  void TearDown() override {
    store_.reset();
    fs::remove_all(dir_);
  }

  void Open(uint64_t max_bytes, bool remote, const std::set<Digest>& keep = {}) {
    store_.reset();
    BlobStoreOptions options{.max_bytes = max_bytes, .unknown_grace = grace_, .room = room_};
    if (remote) {
      options.remote = *OpenObjectStore(*ParseStoreUri("file://" + Remote().string()), {});
      options.remote_name = "remote";
    }
    store_ = std::make_unique<BlobStore>(dir_ / "disk", options);
    ASSERT_TRUE(store_->Open(keep).ok());
  }
  fs::path Remote() const { return dir_ / "remote"; }
  absl::Status Put(const std::string& text) { return store_->Put(Sha256Of(text), text); }
  std::string Read(const std::string& text) {
    auto in = store_->Read(Sha256Of(text), text.size());
    if (!in.ok()) return std::string(in.status().message());
    std::stringstream out;
    out << in->rdbuf();
    return out.str();
  }
  bool OnDisk(const std::string& text) const {
    return fs::exists(dir_ / "disk" / Sha256Of(text).Hex());
  }
  fs::path RemoteFile(const std::string& text) const {
    return Remote() / "blobs" / Sha256Of(text).Hex();
  }
  Reason ReasonOf(const absl::Status& status) const { return GetErrorDetail(status)->reason; }

  fs::path dir_;
  std::chrono::hours grace_ = kUnknownGrace;
  DiskRoom room_;
  std::unique_ptr<BlobStore> store_;
};

TEST_F(BlobStoreTest, WithoutAnObjectStoreTheBudgetRefuses) {
  Open(10, false);
  EXPECT_TRUE(Put("12345").ok());
  EXPECT_TRUE(Put("54321").ok());
  const absl::Status full = Put("x");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(full), Reason::kQuota);
  EXPECT_THAT(std::string(full.message()),
              HasSubstr("its 1 bytes and the 10 that are stored exceed --blob-bytes, 10"));
  EXPECT_FALSE(OnDisk("x"));
  store_->Remove(Sha256Of("12345"));
  store_->AwaitRemovals();
  EXPECT_FALSE(OnDisk("12345"));
  EXPECT_TRUE(Put("x").ok());
  EXPECT_EQ(Read("x"), "x");
}

TEST_F(BlobStoreTest, WithOneTheDiskIsACacheOfWhatWasUsedLast) {
  Open(10, true);
  EXPECT_TRUE(Put("12345").ok());
  EXPECT_TRUE(Put("54321").ok());
  EXPECT_EQ(Read("12345"), "12345");
  EXPECT_TRUE(Put("third").ok());
  EXPECT_TRUE(OnDisk("12345"));
  EXPECT_FALSE(OnDisk("54321"));
  EXPECT_FALSE(store_->Holds(Sha256Of("54321"), 5));
  EXPECT_FALSE(store_->IsLost(Sha256Of("54321"), 5));
  EXPECT_EQ(Read("54321"), "54321");  // comes back, and another one goes
  EXPECT_FALSE(OnDisk("12345"));
  EXPECT_TRUE(Put("larger than the budget").ok());
  EXPECT_EQ(Read("larger than the budget"), "larger than the budget");
}

TEST_F(BlobStoreTest, ReadersKeepWhatTheyHaveOpen) {
  Open(5, true);
  EXPECT_TRUE(Put("12345").ok());
  auto in = store_->Read(Sha256Of("12345"), 5);
  EXPECT_TRUE(Put("54321").ok());
  EXPECT_FALSE(OnDisk("12345"));
  std::string text;
  *in >> text;
  EXPECT_EQ(text, "12345");
}

TEST_F(BlobStoreTest, ForeignBytesInTheObjectStoreAreRefused) {
  Open(5, true);
  EXPECT_TRUE(Put("12345").ok());
  EXPECT_TRUE(Put("54321").ok());
  std::ofstream(RemoteFile("12345")) << "1234x";
  EXPECT_EQ(ReasonOf(store_->Read(Sha256Of("12345"), 5).status()), Reason::kDigestMismatch);
  EXPECT_FALSE(OnDisk("12345"));
  fs::remove(RemoteFile("12345"));
  EXPECT_TRUE(absl::IsNotFound(store_->Read(Sha256Of("12345"), 5).status()));
  EXPECT_EQ(Read("54321"), "54321");
}

// However much it is: the disk is not filled with it first.
TEST_F(BlobStoreTest, OfAnObjectLargerThanTheContentNothingComesToTheDisk) {
  int looks = 0;  // at the room for what is to be written
  room_ = [&] {
    ++looks;
    return uint64_t{1} << 40;
  };
  Open(5, true);
  EXPECT_TRUE(Put("12345").ok());
  EXPECT_TRUE(Put("54321").ok());
  std::ofstream(RemoteFile("12345")) << "12345 and more";
  looks = 0;
  const absl::Status larger = store_->Read(Sha256Of("12345"), 5).status();
  EXPECT_TRUE(absl::IsDataLoss(larger)) << larger;
  EXPECT_EQ(ReasonOf(larger), Reason::kDigestMismatch);
  EXPECT_NE(larger.message().find("more than its 5 bytes"), std::string_view::npos) << larger;
  EXPECT_EQ(looks, 0);
  EXPECT_TRUE(store_->IsLost(Sha256Of("12345"), 5));
}

TEST_F(BlobStoreTest, AnObjectStoreThatIsNewGetsWhatLiesOnDiskFirst) {
  Open(0, false);
  EXPECT_TRUE(Put("12345").ok());
  Open(5, true, {Sha256Of("12345")});
  EXPECT_TRUE(fs::exists(RemoteFile("12345")));
  EXPECT_TRUE(Put("54321").ok());  // takes its place on disk
  EXPECT_FALSE(OnDisk("12345"));
  EXPECT_EQ(Read("12345"), "12345");
  // And not again at the next start.
  fs::remove(RemoteFile("12345"));
  Open(5, true, {Sha256Of("12345"), Sha256Of("54321")});
  EXPECT_FALSE(fs::exists(RemoteFile("12345")));
}

TEST_F(BlobStoreTest, AnObjectStoreThatIsNewGetsNothingSpoilt) {
  Open(0, false);
  EXPECT_TRUE(Put("12345").ok());
  std::ofstream(dir_ / "disk" / Sha256Of("12345").Hex()) << "1234x";
  Open(0, true, {Sha256Of("12345")});
  EXPECT_FALSE(fs::exists(RemoteFile("12345")));
  EXPECT_TRUE(store_->IsLost(Sha256Of("12345"), 5));
}

TEST_F(BlobStoreTest, AnObjectStoreThatIsAwayIsNotMadeAnew) {
  Open(5, true);
  EXPECT_TRUE(Put("12345").ok());
  EXPECT_TRUE(Put("54321").ok());
  fs::rename(Remote(), dir_ / "unmounted");
  Open(5, true, {Sha256Of("12345"), Sha256Of("54321")});
  EXPECT_EQ(Read("54321"), "54321");
  EXPECT_TRUE(absl::IsUnavailable(store_->Read(Sha256Of("12345"), 5).status()));
  EXPECT_TRUE(absl::IsUnavailable(Put("third")));
  EXPECT_FALSE(OnDisk("third"));
  EXPECT_FALSE(fs::exists(Remote()));
  EXPECT_FALSE(store_->IsLost(Sha256Of("12345"), 5));
  fs::rename(dir_ / "unmounted", Remote());
  EXPECT_EQ(Read("12345"), "12345");
}

TEST_F(BlobStoreTest, WhatCannotBeOpenedNowIsNotLost) {
  Open(0, false);
  EXPECT_TRUE(Put("12345").ok());
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{0, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  const absl::Status status = store_->Read(Sha256Of("12345"), 5).status();
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Read("12345"), "12345");
}

TEST_F(BlobStoreTest, WhatIsRemovedLeavesBothAndMayComeBack) {
  Open(0, true);
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(Put("again").ok());
    ASSERT_TRUE(fs::exists(RemoteFile("again")));
    store_->Remove(Sha256Of("again"));
  }
  ASSERT_TRUE(Put("again").ok());
  store_->Remove(Sha256Of("other"));
  EXPECT_EQ(Read("again"), "again");
  EXPECT_TRUE(fs::exists(RemoteFile("again")));
}

TEST_F(BlobStoreTest, KeepsWhatNamesHoldOverARestart) {
  Open(0, false);
  EXPECT_TRUE(Put("kept").ok());
  EXPECT_TRUE(Put("left").ok());
  std::ofstream(dir_ / "disk/.new-abc") << "half";
  Open(5, false, {Sha256Of("kept")});
  EXPECT_EQ(Read("kept"), "kept");
  EXPECT_FALSE(OnDisk("left"));
  EXPECT_FALSE(fs::exists(dir_ / "disk/.new-abc"));
  EXPECT_FALSE(Put("12").ok());  // counts towards the budget
  EXPECT_TRUE(Put("1").ok());
}

TEST_F(BlobStoreTest, WhatTheRegistryDoesNotKnowWaitsForOneThatDoes) {
  Open(0, true);
  EXPECT_TRUE(Put("later").ok());
  const fs::path aside = dir_ / "disk/.unknown" / Sha256Of("later").Hex();
  const auto long_ago = fs::file_time_type::clock::now() - 2 * kUnknownGrace;
  fs::last_write_time(dir_ / "disk" / Sha256Of("later").Hex(), long_ago);
  InitLogging("test", LogLevel::kInfo);
  testing::internal::CaptureStderr();
  Open(0, true);  // an older registry
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("the registry does not know 1 contents (5 bytes) that lie in " +
                        (dir_ / "disk/.unknown").string() + " and 1 in the object store"));
  EXPECT_FALSE(OnDisk("later"));
  EXPECT_TRUE(fs::exists(aside));
  EXPECT_TRUE(fs::exists(RemoteFile("later")));
  Open(0, true, {Sha256Of("later")});  // the newest one is back
  EXPECT_TRUE(OnDisk("later"));
  EXPECT_EQ(Read("later"), "later");
  EXPECT_FALSE(fs::exists(aside));
  Open(0, true);
  fs::last_write_time(aside, long_ago);
  Open(0, true);
  EXPECT_FALSE(fs::exists(aside));
  grace_ = std::chrono::hours(0);
  Open(0, true, {Sha256Of("other")});
  for (int i = 0; i < 1000 && fs::exists(RemoteFile("later")); ++i) usleep(1000);
  EXPECT_FALSE(fs::exists(RemoteFile("later")));
}

TEST_F(BlobStoreTest, LeavesRoomToTheRegistry) {
  room_ = [] { return uint64_t{5}; };
  for (const bool remote : {false, true}) {
    Open(0, remote);
    const absl::Status full = Put("123456");
    EXPECT_EQ(ReasonOf(full), Reason::kNoSpace) << full;
    EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_FALSE(OnDisk("123456"));
    EXPECT_TRUE(Put("12345").ok());
  }
  fs::create_directories(RemoteFile("123456").parent_path());
  std::ofstream(RemoteFile("123456")) << "123456";
  EXPECT_EQ(ReasonOf(store_->Read(Sha256Of("123456"), 6).status()), Reason::kNoSpace);
}

TEST_F(BlobStoreTest, WhatTheObjectStoreHoldsTooMakesRoomOnAFullDisk) {
  // A disk of 10 bytes beside the registry's, and no budget.
  room_ = [this] {
    uint64_t taken = 0;
    for (const auto& file : fs::directory_iterator(dir_ / "disk")) {
      const std::string name = file.path().filename();
      if (Digest::FromHex(name) || name.starts_with(".new-")) taken += file.file_size();
    }
    return 10 - taken;
  };
  Open(0, true);
  for (const char* text : {"1111", "2222", "3333"}) EXPECT_TRUE(Put(text).ok()) << text;
  EXPECT_FALSE(OnDisk("1111"));
  EXPECT_TRUE(OnDisk("2222"));
  EXPECT_EQ(Read("1111"), "1111");
  EXPECT_FALSE(OnDisk("2222"));
  EXPECT_TRUE(OnDisk("3333"));
  EXPECT_EQ(ReasonOf(Put("12345678901")), Reason::kNoSpace);
  // Without one what is there is all there is.
  Open(0, false, {Sha256Of("1111"), Sha256Of("3333")});
  EXPECT_EQ(ReasonOf(Put("4444")), Reason::kNoSpace);
  EXPECT_TRUE(OnDisk("1111"));
}

// A content that is put once more is on disk already: others' need of room leaves it alone until it
// is in the object store.
TEST_F(BlobStoreTest, WhatIsOnItsWayToTheObjectStoreStaysOnDisk) {
  const auto remote = std::make_shared<FakeObjectStore>();
  BlobStoreOptions options{.max_bytes = 1, .remote = remote, .remote_name = "fake"};
  store_ = std::make_unique<BlobStore>(dir_ / "disk", options);
  ASSERT_TRUE(store_->Open({}).ok());
  ASSERT_TRUE(Put("12345").ok());
  bool in_other = false;
  remote->fails = [&](const std::string& call) {
    if (call != "put" || std::exchange(in_other, true)) return absl::OkStatus();
    EXPECT_TRUE(Put("another").ok());
    EXPECT_TRUE(OnDisk("12345"));
    return absl::OkStatus();
  };
  EXPECT_TRUE(Put("12345").ok());
  EXPECT_TRUE(in_other);
  EXPECT_EQ(*remote->Size("blobs/" + Sha256Of("12345").Hex()), 5u);
  // Later it goes as any other.
  EXPECT_TRUE(Put("one more").ok());
  EXPECT_FALSE(OnDisk("12345"));
}

}  // namespace
}  // namespace rootstock
