#include "coordinator/content/adapter_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "common/base/status.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class AdapterSourcesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "sources-XXXXXX").string();
    dir_ = mkdtemp(name.data());
    for (const char* adapter : {"store/team/pirate", "store/team/pickled", "store/team/empty",
                                "store/teammate/pirate", "other/pirate"}) {
      fs::create_directories(dir_ / adapter);
      Write(std::string(adapter) + "/adapter_config.json", "{}");
    }
    fs::remove(dir_ / "store/team/empty/adapter_config.json");
    for (const char* adapter : {"store/team/pirate", "store/teammate/pirate", "other/pirate"}) {
      Write(std::string(adapter) + "/adapter_model.safetensors", "weights");
    }
    Write("store/team/pickled/adapter_model.bin", "pickle");
    sources_ =
        *AdapterSources::Open(dir_ / "scratch", {.allowed = {*ParseStoreUri(Uri("store/team"))},
                                                 .own = {*ParseStoreUri(Uri("store/team"))},
                                                 .max_weights_bytes = 7});
  }
  void TearDown() override { fs::remove_all(dir_); }

  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(dir_ / name) << bytes;
  }
  std::string Uri(const std::string& path) const { return "file://" + (dir_ / path).string(); }
  absl::Status Fetch(const std::string& uri, bool own = false) {
    const auto use = [&](const fs::path& path) {
      std::stringstream weights;
      weights << std::ifstream(path / "adapter_model.safetensors").rdbuf();
      seen_ = weights.str();
      EXPECT_TRUE(fs::exists(path / "adapter_config.json"));
      return use_;
    };
    return own ? sources_->FetchOwn(uri, use) : sources_->Fetch(uri, use);
  }
  // What the client of a model hears of the coordinator's own store.
  absl::Status FetchOwn(const std::string& name) {
    const absl::Status status = Fetch(Uri("store/team/" + name), /*own=*/true);
    EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr(dir_.string())));
    EXPECT_EQ(status.ok() ? "model" : GetErrorDetail(status)->field, "model") << status;
    return status;
  }
  Reason ReasonOf(const absl::Status& status) const { return GetErrorDetail(status)->reason; }

  fs::path dir_;
  std::unique_ptr<AdapterSources> sources_;
  absl::Status use_;
  std::string seen_;
};

TEST_F(AdapterSourcesTest, HandsOverAPrivateCopy) {
  EXPECT_EQ(Fetch(Uri("store/team/pirate")), absl::OkStatus());
  EXPECT_EQ(seen_, "weights");
  EXPECT_TRUE(fs::is_empty(dir_ / "scratch"));
  use_ = absl::DataLossError("x");
  EXPECT_EQ(Fetch(Uri("store/team/pirate")), use_);
  EXPECT_TRUE(fs::is_empty(dir_ / "scratch"));
}

TEST_F(AdapterSourcesTest, LooksAtNothingOutsideTheAllowedSources) {
  for (const std::string& uri :
       {Uri("other/pirate"), Uri("store/teammate/pirate"), Uri("store/team"), Uri("store"),
        std::string("s3://bucket/pirate"), Uri("store/team/../teammate/pirate"),
        std::string("http://localhost/x")}) {
    const absl::Status status = Fetch(uri);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << uri;
    EXPECT_EQ(ReasonOf(status), Reason::kPathInvalid) << uri;
  }
  EXPECT_EQ(seen_, "");
}

TEST_F(AdapterSourcesTest, NamesWhatIsMissingPickledOrTooLarge) {
  const absl::Status empty = Fetch(Uri("store/team/empty"));
  EXPECT_TRUE(absl::IsNotFound(empty));
  EXPECT_THAT(std::string(empty.message()), HasSubstr("there is no adapter_config.json"));
  EXPECT_EQ(ReasonOf(Fetch(Uri("store/team/pickled"))), Reason::kPickle);
  Write("store/team/pirate/adapter_model.safetensors", "weights+");
  EXPECT_EQ(ReasonOf(Fetch(Uri("store/team/pirate"))), Reason::kSizeLimit);
  EXPECT_TRUE(absl::IsInvalidArgument(Fetch(Uri("store/team/pirate"))));
  Write("store/team/pirate/adapter_config.json", std::string((64 << 10) + 1, ' '));
  EXPECT_EQ(ReasonOf(Fetch(Uri("store/team/pirate"))), Reason::kSizeLimit);
  EXPECT_EQ(seen_, "");
  EXPECT_TRUE(fs::is_empty(dir_ / "scratch"));
}

TEST_F(AdapterSourcesTest, ItsOwnStoreIsNotToldToClients) {
  EXPECT_EQ(FetchOwn("pirate"), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(FetchOwn("nobody")));
  EXPECT_EQ(ReasonOf(FetchOwn("pickled")), Reason::kPickle);
  Write("store/team/pirate/adapter_model.safetensors", "weights+");
  const absl::Status large = FetchOwn("pirate");
  EXPECT_EQ(ReasonOf(large), Reason::kSizeLimit);
  EXPECT_TRUE(absl::IsInvalidArgument(large));  // of the adapter: no use in trying again
  // A store that is not there says nothing of its adapters.
  fs::rename(dir_ / "store", dir_ / "unmounted");
  const absl::Status away = FetchOwn("nobody");
  EXPECT_TRUE(absl::IsUnavailable(away));
  EXPECT_EQ(away.message(), "model=nobody: the store can't be reached; try again later");
  fs::rename(dir_ / "unmounted", dir_ / "store");
  EXPECT_TRUE(absl::IsNotFound(FetchOwn("nobody")));
  // What the use says is its own.
  Write("store/team/pirate/adapter_model.safetensors", "weights");
  use_ = InvalidField(Reason::kDora, "model", "use_dora", "no");
  EXPECT_EQ(FetchOwn("pirate"), use_);
  sources_->Cancel();
  EXPECT_TRUE(absl::IsCancelled(FetchOwn("pirate")));
}

TEST_F(AdapterSourcesTest, LooksAtTheRoomOfItsDiskFirst) {
  uint64_t room = 6;  // of 7
  sources_ = *AdapterSources::Open(dir_ / "scratch", {.allowed = {*ParseStoreUri(Uri("store"))},
                                                      .own = {*ParseStoreUri(Uri("store/team"))},
                                                      .room = [&] { return room; }});
  const absl::Status full = Fetch(Uri("store/team/pirate"));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(full), Reason::kNoSpace);
  EXPECT_THAT(std::string(full.message()),
              HasSubstr("path=" + Uri("store/team/pirate") +
                        ": No space left on device for its 7 bytes: 6 are free"));
  EXPECT_EQ(ReasonOf(FetchOwn("pirate")), Reason::kNoSpace);
  room = 7;
  EXPECT_EQ(Fetch(Uri("store/team/pirate")), absl::OkStatus());
  // Others take it meanwhile.
  int asked = 0;
  sources_ = *AdapterSources::Open(dir_ / "scratch", {.allowed = {*ParseStoreUri(Uri("store"))},
                                                      .room = [&] { return ++asked < 4 ? 7 : 6; }});
  EXPECT_EQ(ReasonOf(Fetch(Uri("store/team/pirate"))), Reason::kNoSpace);
  EXPECT_TRUE(fs::is_empty(dir_ / "scratch"));
}

TEST_F(AdapterSourcesTest, EmptiesItsScratchAtStartAndEndsWhenCancelled) {
  Write("scratch/left", "x");
  ASSERT_TRUE(AdapterSources::Open(dir_ / "scratch", {}).ok());
  EXPECT_TRUE(fs::is_empty(dir_ / "scratch"));
  sources_->Cancel();
  EXPECT_TRUE(absl::IsCancelled(Fetch(Uri("store/team/pirate"))));
}

TEST_F(AdapterSourcesTest, ARootOrABucketMayBeAllowedAsAWhole) {
  sources_ = *AdapterSources::Open(dir_ / "scratch", {.allowed = {*ParseStoreUri("file:///")}});
  EXPECT_EQ(Fetch(Uri("other/pirate")), absl::OkStatus());
  EXPECT_TRUE(AdapterSources::IsUri("s3://x/y"));
  EXPECT_FALSE(AdapterSources::IsUri("team/pirate"));
}

}  // namespace
}  // namespace rootstock
