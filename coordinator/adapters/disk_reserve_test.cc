#include "coordinator/adapters/disk_reserve.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

namespace rootstock {
namespace {

namespace fs = std::filesystem;

class DiskReserveTest : public testing::Test {
 protected:
  DiskReserveTest()
      : file_(fs::path(testing::TempDir()) / ("reserve-" + std::to_string(getpid()))) {}
  ~DiskReserveTest() override { fs::remove(file_); }
  // Of the disk; 0 when it is absent.
  size_t Bytes() const {
    struct stat facts{};
    return stat(file_.c_str(), &facts) == 0 ? static_cast<size_t>(facts.st_blocks) * 512 : 0;
  }

  const fs::path file_;
};

TEST_F(DiskReserveTest, TakesItsBytesAndGivesThemUp) {
  const DiskReserve reserve(file_);
  reserve.GiveUp();
  reserve.Take();
  EXPECT_GE(Bytes(), 256u << 10);
  reserve.Take();
  EXPECT_LT(Bytes(), 512u << 10);
  reserve.GiveUp();
  EXPECT_EQ(Bytes(), 0u);
}

// Here a limit of files stands for a full disk.
TEST_F(DiskReserveTest, TakesWhatThereIs) {
  struct rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto signal_before = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit little = {40 << 10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  DiskReserve(file_).Take();
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, signal_before);
  EXPECT_GE(Bytes(), 40u << 10);
  EXPECT_LT(Bytes(), 256u << 10);
}

}  // namespace
}  // namespace rootstock
