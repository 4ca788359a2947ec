#include "common/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rootstock {
namespace {

using testing::EndsWith;
using testing::internal::CaptureStderr;
using testing::internal::GetCapturedStderr;

TEST(Log, ALineStaysOneLine) {
  InitLogging("test", LogLevel::kInfo);
  CaptureStderr();
  LogInfo("group a\nb\x1b[31m \x7f ü");
  EXPECT_THAT(GetCapturedStderr(), EndsWith("  group a\\x0ab\\x1b[31m \\x7f ü\n"));
}

}  // namespace
}  // namespace rootstock
