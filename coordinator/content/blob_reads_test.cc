// Blobs that are spoilt, and an object store that fails.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <sstream>

#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/content/blob_store.h"
#include "coordinator/content/fake_object_store.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

constexpr char kText[] = "12345";

class BlobReadsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "reads-XXXXXX").string();
    dir_ = mkdtemp(name.data());
  }
  void TearDown() override {
    store_.reset();
    fs::remove_all(dir_);
  }
  void Open(std::shared_ptr<ObjectStore> remote, const std::set<Digest>& keep = {}) {
    store_.reset();
    store_ = std::make_unique<BlobStore>(
        dir_, BlobStoreOptions{.remote = std::move(remote),
                               .remote_name = "fake",
                               .removal_retry = std::chrono::milliseconds(1)});
    ASSERT_TRUE(store_->Open(keep).ok());
  }
  absl::Status Put() { return store_->Put(digest_, kText); }
  absl::StatusOr<std::string> Read() {
    auto in = store_->Read(digest_, sizeof kText - 1);
    if (!in.ok()) return in.status();
    std::stringstream out;
    out << in->rdbuf();
    return out.str();
  }
  // Another file in its place: writes within one tick of the clock look alike.
  void Spoil(const std::string& bytes) const {
    std::ofstream(dir_ / ".spoilt") << bytes;
    fs::rename(dir_ / ".spoilt", File());
  }
  fs::path File() const { return dir_ / digest_.Hex(); }
  std::string Key() const { return "blobs/" + digest_.Hex(); }

  const Digest digest_ = Sha256Of(kText);
  fs::path dir_;
  const std::shared_ptr<FakeObjectStore> remote_ = std::make_shared<FakeObjectStore>();
  std::unique_ptr<BlobStore> store_;
};

TEST_F(BlobReadsTest, ASpoiltCopyIsTakenAnew) {
  Open(remote_);
  ASSERT_TRUE(Put().ok());
  for (const char* spoilt : {"1234x", "123", ""}) {
    Spoil(spoilt);
    EXPECT_EQ(*Read(), kText) << spoilt;
    // Also one that was spoilt while nobody ran.
    Spoil(spoilt);
    Open(remote_, {digest_});
    EXPECT_FALSE(store_->IsLost(digest_, 5)) << spoilt;
    EXPECT_EQ(*Read(), kText) << spoilt;
  }
  fs::remove(File());
  EXPECT_EQ(*Read(), kText);
}

TEST_F(BlobReadsTest, ASpoiltOnlyCopyIsToldAndCanBePutAgain) {
  Open(nullptr);
  ASSERT_TRUE(Put().ok());
  Spoil("1234x");
  const absl::Status status = Read().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kDigestMismatch);
  EXPECT_TRUE(store_->IsLost(digest_, 5));
  EXPECT_FALSE(store_->Holds(digest_, 5));
  Spoil(kText);  // its disk has come to itself
  EXPECT_EQ(*Read(), kText);
  EXPECT_FALSE(store_->IsLost(digest_, 5));
  Spoil("1234x");
  EXPECT_FALSE(Read().ok());
  ASSERT_TRUE(Put().ok());
  EXPECT_EQ(*Read(), kText);
}

// A file that opens and whose reads fail with EIO.
void MakeUnreadable(const fs::path& file) {
  fs::remove(file);
  fs::create_symlink("/proc/self/mem", file);
}

TEST_F(BlobReadsTest, ACopyThatTheDiskDoesNotGiveBackIsTakenAnew) {
  Open(remote_);
  ASSERT_TRUE(Put().ok());
  MakeUnreadable(File());
  EXPECT_EQ(*Read(), kText);
  EXPECT_TRUE(fs::is_regular_file(File()));
  // Nor does it end a start with another store.
  MakeUnreadable(File());
  store_.reset();
  fs::remove(dir_ / ".object-store");
  Open(remote_, {digest_});
  EXPECT_EQ(*Read(), kText);
}

TEST_F(BlobReadsTest, AnOnlyCopyThatCannotBeReadIsToldAndCanBePutAgain) {
  Open(nullptr);
  ASSERT_TRUE(Put().ok());
  MakeUnreadable(File());
  const absl::Status status = Read().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kIoError);
  EXPECT_TRUE(store_->IsLost(digest_, 5));
  ASSERT_TRUE(Put().ok());
  EXPECT_EQ(*Read(), kText);
}

// Bytes that changed without the system's knowledge: here by a page that is mapped and dirty.
TEST_F(BlobReadsTest, WhatIsDoubtedIsVerifiedAnewThoughItsFileLooksAsItDid) {
  Open(remote_);
  ASSERT_TRUE(Put().ok());
  const int fd = open(File().c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  auto* page = static_cast<char*>(mmap(nullptr, 5, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  close(fd);
  ASSERT_NE(page, MAP_FAILED);
  page[0] = kText[0];
  EXPECT_EQ(*Read(), kText);
  page[0] = 'x';
  store_->Doubt(digest_);
  EXPECT_EQ(*Read(), kText);
  store_->Doubt(Sha256Of("unknown"));
  munmap(page, 5);
}

TEST_F(BlobReadsTest, AStoresFailureHasNoAddress) {
  Open(remote_);
  ASSERT_TRUE(Put().ok());
  fs::remove(File());
  const std::pair<absl::StatusCode, absl::StatusCode> kCases[] = {
      {absl::StatusCode::kUnavailable, absl::StatusCode::kUnavailable},
      {absl::StatusCode::kPermissionDenied, absl::StatusCode::kUnavailable},
      {absl::StatusCode::kFailedPrecondition, absl::StatusCode::kUnavailable},
      {absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kDeadlineExceeded},
      {absl::StatusCode::kNotFound, absl::StatusCode::kNotFound},
  };
  for (const auto& [from, told] : kCases) {
    remote_->fails = [from](const std::string&) { return FakeObjectStore::Failure(from); };
    const absl::Status status = Read().status();
    EXPECT_EQ(status.code(), told);
    EXPECT_THAT(std::string(status.message()), HasSubstr("digest=" + digest_.Short() + ": "));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("secret-place")));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("10.0.0.7")));
    // Only who says that it is not there is believed, until it is there again.
    EXPECT_EQ(store_->IsLost(digest_, 5), from == absl::StatusCode::kNotFound);
  }
  remote_->fails = nullptr;
  EXPECT_EQ(*Read(), kText);
  EXPECT_FALSE(store_->IsLost(digest_, 5));
}

TEST_F(BlobReadsTest, APutThatTheStoreRefusesLeavesNothingBehind) {
  Open(remote_);
  std::promise<void> removed;
  remote_->fails = [&](const std::string& call) {
    if (call == "remove") removed.set_value();
    return call == "put's answer" ? FakeObjectStore::Failure(absl::StatusCode::kUnavailable)
                                  : absl::OkStatus();
  };
  EXPECT_TRUE(absl::IsUnavailable(Put()));
  EXPECT_FALSE(fs::exists(File()));
  EXPECT_EQ(removed.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  store_.reset();
  EXPECT_FALSE(remote_->Has(Key()));
}

TEST_F(BlobReadsTest, AFullStoreIsLoggedWithItsAddressAndToldWithout) {
  Open(remote_);
  remote_->fails = [](const std::string& call) {
    return call == "put" ? FakeObjectStore::Failure(absl::StatusCode::kResourceExhausted)
                         : absl::OkStatus();
  };
  InitLogging("test", LogLevel::kInfo);
  testing::internal::CaptureStderr();
  const absl::Status full = Put();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("secret-place: at 10.0.0.7"));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(full)->reason, Reason::kNoSpace);
  EXPECT_EQ(full.message(), "data=" + digest_.Short() + ": the store is full");
}

TEST_F(BlobReadsTest, ARefusedPutTakesNothingFromThoseWhoHaveTheContent) {
  Open(remote_);
  ASSERT_TRUE(Put().ok());
  std::promise<void> removed;
  remote_->fails = [&](const std::string& call) {
    if (call == "put") return FakeObjectStore::Failure(absl::StatusCode::kUnavailable);
    if (call == "remove") removed.set_value();  // a second time would throw
    return absl::OkStatus();
  };
  EXPECT_FALSE(Put().ok());
  EXPECT_EQ(*Read(), kText);
  const Digest later = Sha256Of("other");  // its turn comes after digest_'s
  ASSERT_LT(digest_, later);
  store_->Remove(later);
  removed.get_future().wait();
  store_.reset();
  EXPECT_TRUE(remote_->Has(Key()));
}

TEST_F(BlobReadsTest, ARemovalIsTriedUntilTheStoreHasDoneIt) {
  Open(remote_);
  ASSERT_TRUE(Put().ok());
  std::promise<void> removed;
  std::atomic<int> tries = 0;
  remote_->fails = [&](const std::string& call) {
    if (call != "remove") return absl::OkStatus();
    if (++tries < 3) return FakeObjectStore::Failure(absl::StatusCode::kUnavailable);
    removed.set_value();
    return absl::OkStatus();
  };
  store_->Remove(digest_);
  EXPECT_EQ(removed.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  store_.reset();
  EXPECT_FALSE(remote_->Has(Key()));
}

TEST_F(BlobReadsTest, ASpoiltCopyLeavesAlsoWhenTheStoreIsAway) {
  Open(remote_);
  ASSERT_TRUE(Put().ok());
  Spoil("1234x");
  remote_->fails = [](const std::string& call) {
    return call == "get" ? FakeObjectStore::Failure(absl::StatusCode::kUnavailable)
                         : absl::OkStatus();
  };
  EXPECT_FALSE(Read().ok());
  store_->AwaitRemovals();
  EXPECT_FALSE(fs::exists(File()));
}

TEST_F(BlobReadsTest, APutThatTheDiskRefusesForgetsNoRemoval) {
  Open(remote_);
  ASSERT_TRUE(Put().ok());
  std::promise<void> removed;
  std::atomic<bool> away = true;
  remote_->fails = [&](const std::string& call) {
    if (call != "remove") return absl::OkStatus();
    if (away) return FakeObjectStore::Failure(absl::StatusCode::kUnavailable);
    removed.set_value();
    return absl::OkStatus();
  };
  store_->Remove(digest_);
  store_->AwaitRemovals();
  fs::create_directories(File() / "in the way");
  EXPECT_FALSE(Put().ok());
  away = false;
  EXPECT_EQ(removed.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  store_.reset();
  EXPECT_FALSE(remote_->Has(Key()));
}

TEST_F(BlobReadsTest, ARemovalThatWasStillToComeIsMadeAtTheNextStart) {
  Open(remote_);
  ASSERT_TRUE(Put().ok());
  remote_->fails = [](const std::string& call) {
    return call == "remove" ? FakeObjectStore::Failure(absl::StatusCode::kUnavailable)
                            : absl::OkStatus();
  };
  store_->Remove(digest_);
  store_.reset();
  EXPECT_TRUE(remote_->Has(Key()));
  std::promise<void> removed;
  remote_->fails = [&](const std::string& call) {
    if (call == "remove") removed.set_value();
    return absl::OkStatus();
  };
  Open(remote_);
  EXPECT_EQ(removed.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  store_.reset();
  EXPECT_FALSE(remote_->Has(Key()));
  remote_->fails = [](const std::string& call) {
    ADD_FAILURE() << call;
    return absl::OkStatus();
  };
  Open(remote_);
}

TEST_F(BlobReadsTest, NobodyWhoLooksWaitsForAReadOrAPut) {
  Open(remote_);
  std::promise<void> begun, go_on;
  remote_->fails = [&](const std::string& call) {
    if (call == "put") {
      begun.set_value();
      go_on.get_future().wait();
    }
    return absl::OkStatus();
  };
  auto put = std::async(std::launch::async, [&] { return Put(); });
  begun.get_future().wait();
  EXPECT_FALSE(store_->Holds(digest_, 5));
  EXPECT_FALSE(store_->IsLost(digest_, 5));
  store_->Remove(Sha256Of("other"));
  go_on.set_value();
  EXPECT_TRUE(put.get().ok());
}

}  // namespace
}  // namespace rootstock
