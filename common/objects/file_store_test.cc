#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "common/base/status.h"
#include "common/objects/object_store.h"
#include "common/objects/sync_log.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class FileStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "file-store-XXXXXX").string();
    dir_ = mkdtemp(name.data());
    fs::create_directories(dir_ / "store");
    store_ = *OpenObjectStore(*ParseStoreUri("file://" + (dir_ / "store").string()), {});
  }
  void TearDown() override { fs::remove_all(dir_); }

  fs::path Write(const std::string& name, const std::string& bytes) const {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
    return dir_ / name;
  }
  absl::StatusOr<std::string> Read(const std::string& key, uint64_t max_bytes = 1 << 30) const {
    std::string out;
    RETURN_IF_ERROR(store_->Get(key, max_bytes, [&](std::string_view bytes) {
      out.append(bytes);
      return absl::OkStatus();
    }));
    return out;
  }

  fs::path dir_;
  std::unique_ptr<ObjectStore> store_;
};

TEST_F(FileStoreTest, GivesBackWhatWasPut) {
  const std::string bytes(3 << 20, 'x');  // several pieces
  ASSERT_TRUE(store_->Put("a/b", Write("in", bytes)).ok());
  EXPECT_EQ(*Read("a/b"), bytes);
  EXPECT_EQ(*store_->Size("a/b"), bytes.size());
  ASSERT_TRUE(store_->Put("a/b", Write("in", "other")).ok());
  EXPECT_EQ(*Read("a/b"), "other");
  EXPECT_TRUE(store_->Remove("a/b").ok());
  EXPECT_TRUE(store_->Remove("a/b").ok());
  EXPECT_TRUE(absl::IsNotFound(Read("a/b").status()));
  // Nothing half-written stays beside it.
  EXPECT_TRUE(fs::is_empty(dir_ / "store/a"));
}

TEST_F(FileStoreTest, WhatIsPutOrRemovedIsOnTheDiskWithItsFolders) {
  const fs::path root = fs::canonical(dir_ / "store");
  {
    const SyncLog log;
    ASSERT_TRUE(store_->Put("a/b/c", Write("in", "x")).ok());
    ASSERT_EQ(log.paths().size(), 4u);  // the file, then each folder that has got an entry
    EXPECT_THAT(log.paths()[0], HasSubstr((root / "a/b/.new-").string()));
    EXPECT_EQ(log.paths()[1], root / "a/b");
    EXPECT_EQ(log.paths()[2], root / "a");
    EXPECT_EQ(log.paths()[3], root);
  }
  const SyncLog log;
  ASSERT_TRUE(store_->Remove("a/b/c").ok());
  EXPECT_THAT(log.paths(), ElementsAre(root / "a/b"));
}

TEST_F(FileStoreTest, AStoreThatIsNotThereSaysNothingOfItsObjects) {
  fs::rename(dir_ / "store", dir_ / "unmounted");
  const auto away = [&](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(GetErrorDetail(status)->field, "uri");
  };
  away(Read("a").status());
  away(store_->Size("a").status());
  away(store_->Remove("a"));
  away(store_->Put("a", Write("in", "x")));
  std::ofstream(dir_ / "store") << "a file";
  away(Read("a").status());
  fs::remove(dir_ / "store");
  EXPECT_TRUE(store_->Create().ok());
  EXPECT_TRUE(absl::IsNotFound(Read("a").status()));
  EXPECT_TRUE(store_->Put("a", Write("in", "x")).ok());
}

TEST_F(FileStoreTest, RefusesWhatLeadsOut) {
  Write("secret", "s");
  fs::create_symlink(dir_ / "secret", dir_ / "store/link");
  fs::create_directory_symlink(dir_, dir_ / "store/up");
  for (const char* key : {"../secret", "link", "up/secret"}) {
    const auto read = Read(key);
    ASSERT_FALSE(read.ok()) << key;
    EXPECT_EQ(GetErrorDetail(read.status())->reason, Reason::kPathInvalid) << key;
    EXPECT_FALSE(store_->Size(key).ok()) << key;
  }
  EXPECT_FALSE(store_->Put("up/new", Write("in", "x")).ok());
  EXPECT_FALSE(store_->Put("up/new/x", Write("in", "x")).ok());
  EXPECT_FALSE(fs::exists(dir_ / "new"));
}

TEST_F(FileStoreTest, RefusesWhatIsTooLargeBeforeItsFirstByte) {
  Write("store/big", "12345");
  const auto read = Read("big", 4);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(read.status())->reason, Reason::kSizeLimit);
  EXPECT_EQ(*Read("big", 5), "12345");
}

TEST_F(FileStoreTest, TellsWhenTheFileIsCutWhileRead) {
  const fs::path path = Write("store/cut", std::string(3 << 20, 'x'));
  const absl::Status status = store_->Get("cut", 1 << 30, [&](std::string_view) {
    fs::resize_file(path, 1 << 20);
    return absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("was cut to 1048576 of 3145728 bytes"));
}

TEST_F(FileStoreTest, ASinksErrorAndACancelEndAGet) {
  Write("store/a", std::string(3 << 20, 'x'));
  EXPECT_EQ(store_->Get("a", 1 << 30, [](std::string_view) { return absl::AbortedError("no"); }),
            absl::AbortedError("no"));
  EXPECT_TRUE(absl::IsCancelled(store_->Get("a", 1 << 30, [&](std::string_view) {
    store_->Cancel();
    return absl::OkStatus();
  })));
}

TEST_F(FileStoreTest, NamesWhatIsMissing) {
  const auto read = Read("none");
  EXPECT_TRUE(absl::IsNotFound(read.status()));
  EXPECT_THAT(std::string(read.status().message()),
              HasSubstr("uri=file://" + (dir_ / "store/none").string()));
  fs::create_directory(dir_ / "store/folder");
  EXPECT_TRUE(absl::IsNotFound(Read("folder").status()));
}

}  // namespace
}  // namespace rootstock
