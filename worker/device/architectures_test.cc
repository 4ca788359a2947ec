#include "worker/device/architectures.h"

#include <gtest/gtest.h>

#include "common/base/status.h"

namespace rootstock {
namespace {

bool Runs(const char* built, int major, int minor) {
  return CheckArchitectures(built, major, minor).ok();
}

TEST(Architectures, HopperTakesItsOwnFeaturesAlone) {
  EXPECT_TRUE(Runs("90a-real", 9, 0));
  EXPECT_TRUE(Runs("80-real,90a", 9, 0));
  EXPECT_FALSE(Runs("90", 9, 0));
  EXPECT_FALSE(Runs("90-virtual", 9, 0));
  EXPECT_FALSE(Runs("80", 9, 0)) << "its PTX would run, with nothing that the host counts on";
}

TEST(Architectures, OthersTakeTheirGenerationUpToTheirs) {
  EXPECT_TRUE(Runs("80", 8, 6));
  EXPECT_TRUE(Runs("80-real,86-real", 8, 9));
  EXPECT_FALSE(Runs("89", 8, 0));
  EXPECT_FALSE(Runs("90a-real", 8, 0));
  EXPECT_FALSE(Runs("80,90a-real", 10, 0));
  EXPECT_TRUE(Runs("100a-real", 10, 0));
  EXPECT_FALSE(Runs("80", 7, 5));
  EXPECT_FALSE(Runs("", 9, 0));
}

TEST(Architectures, TheErrorNamesBothSides) {
  const absl::Status status = CheckArchitectures("80,90", 9, 0);
  EXPECT_EQ(
      status.message(),
      "CMAKE_CUDA_ARCHITECTURES=80,90: the GPU is of compute capability 9.0: build with 90a-real");
  EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kConfigInvalid);
}

}  // namespace
}  // namespace rootstock
