#include "coordinator/adapters/adapter_path.h"

#include <fcntl.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

TEST(AdapterName, TakesThePatternOnly) {
  for (const char* good : {"a", "0", "sql-v1.2_b",
                           "a23456789012345678901234567890123456789012345678901234567890123"}) {
    EXPECT_TRUE(CheckAdapterName(good).ok()) << good;
  }
  for (const char* bad : {"", "A", ".a", "-a", "_a", "a/b", "..", "a b", "ä",
                          "a234567890123456789012345678901234567890123456789012345678901234"}) {
    EXPECT_FALSE(CheckAdapterName(bad).ok()) << bad;
  }
  // The refusal names field, value and rule; an absurd value is cut.
  EXPECT_EQ(std::string(CheckAdapterName("a/b").message()),
            "name=a/b: must match [a-z0-9][a-z0-9._-]{0,62} (adapter names)");
  const auto detail = GetErrorDetail(CheckAdapterName("a/b"));
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->field, "name");
  EXPECT_EQ(detail->value, "a/b");
  const std::string text(CheckAdapterName(std::string(1 << 20, 'A')).message());
  EXPECT_LT(text.size(), 400u);
  EXPECT_NE(text.find("{0,62}"), std::string::npos);
}

class AdapterPath : public testing::Test {
 protected:
  void SetUp() override {
    base_ = fs::path(testing::TempDir()) / "adapter_path_test";
    fs::remove_all(base_);
    fs::create_directories(base_ / "root" / "good");
    fs::create_directories(base_ / "outside");
    std::ofstream(base_ / "outside" / "secret") << "x";
    std::ofstream(base_ / "root" / "file") << "x";
    std::ofstream(base_ / "root" / "good" / "adapter_config.json") << "{}";
  }
  Reason ReasonOf(const std::string& path) {
    const auto got = OpenAdapterPath(base_ / "root", path);
    return got.ok() ? Reason::kInternal : GetErrorDetail(got.status())->reason;
  }
  fs::path base_;
};

TEST_F(AdapterPath, FindsDirectoriesUnderTheRoot) {
  const auto got = OpenAdapterPath(base_ / "root", "good");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(fs::equivalent(got->path(), base_ / "root" / "good"));
  fs::create_directory_symlink(base_ / "root" / "good", base_ / "root" / "alias");
  EXPECT_TRUE(OpenAdapterPath(base_ / "root", "alias").ok());
  const auto absolute = OpenAdapterPath(base_ / "root", (base_ / "root/good").string());
  ASSERT_TRUE(absolute.ok()) << absolute.status();
  EXPECT_TRUE(fs::equivalent(absolute->path(), got->path()));
}

TEST_F(AdapterPath, L2RefusesEveryWayOut) {
  fs::create_directory_symlink(base_ / "outside", base_ / "root" / "link");
  fs::create_directories(base_ / "root" / "mixed");
  fs::create_symlink(base_ / "outside" / "secret", base_ / "root" / "mixed" / "adapter_model.bin");
  const std::string nul("good\0", 5);
  for (const std::string& bad :
       {std::string("../outside"), std::string("good/../../outside"), (base_ / "outside").string(),
        std::string("link"), std::string("mixed"), std::string("absent"), std::string("file"),
        std::string(""), nul}) {
    EXPECT_EQ(ReasonOf(bad), Reason::kPathInvalid) << bad;
  }
  EXPECT_FALSE(OpenAdapterPath("", "good").ok());
  // A root whose name is a prefix of another's does not open the other.
  fs::create_directories(base_ / "root2");
  fs::create_directory_symlink(base_ / "root2", base_ / "root" / "near");
  EXPECT_EQ(ReasonOf("near"), Reason::kPathInvalid);
}

// What is opened is under the root and stays what is read, whatever takes its place: a directory
// and a link that leads out, exchanged without end.
TEST_F(AdapterPath, L2ALinkThatTakesADirectorysPlaceIsNotFollowed) {
  std::ofstream(base_ / "outside" / "adapter_config.json") << "outside";
  fs::create_directory_symlink(base_ / "outside", base_ / "root" / "link");
  const std::string good = base_ / "root" / "good", link = base_ / "root" / "link";
  std::atomic<bool> over = false;
  std::thread exchanging([&] {
    while (!over) renameat2(AT_FDCWD, good.c_str(), AT_FDCWD, link.c_str(), RENAME_EXCHANGE);
  });
  int opened = 0, refused = 0;
  for (int i = 0; i < 100000 && (i < 5000 || opened < 100 || refused < 100); ++i) {
    const auto got = OpenAdapterPath(base_ / "root", "good");
    if (!got.ok()) {
      ++refused;
      continue;
    }
    ++opened;
    std::string text;
    std::ifstream(got->path() / "adapter_config.json") >> text;
    if (text != "{}") {
      ADD_FAILURE() << "read " << text;
      break;
    }
  }
  over = true;
  exchanging.join();
  EXPECT_GE(opened, 100);
  EXPECT_GE(refused, 100);
}

}  // namespace
}  // namespace rootstock
