#include "common/wire/library_log.h"

#include <grpc/support/log.h>

#include "common/base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rootstock/v1/cluster.pb.h"

namespace rootstock {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// What goes to stderr at a log level.
template <typename F>
std::string LogOf(LogLevel level, F act) {
  testing::internal::CaptureStderr();
  InitLogging("coordinator", level);
  RouteLibraryLogs();
  act();
  return testing::internal::GetCapturedStderr();
}

void SayInGrpc() {
  gpr_log_verbosity_init();  // as grpc_init does
  gpr_log(GPR_ERROR, "no address\nadded\n");
  gpr_log(GPR_ERROR, "%s", "assertion failed: x == 1");
}

TEST(LibraryLog, WhatGrpcSaysIsOneLineOfOurLog) {
  EXPECT_THAT(LogOf(LogLevel::kInfo, SayInGrpc),
              AllOf(HasSubstr(" W coordinator  grpc: no address added (library_log_test.cc:"),
                    HasSubstr(" E coordinator  grpc: assertion failed: x == 1"),
                    StartsWith("20")));  // the date: nothing stands before the first line
  EXPECT_THAT(LogOf(LogLevel::kError, SayInGrpc),
              AllOf(Not(HasSubstr("no address")), HasSubstr("assertion failed")));
}

TEST(LibraryLog, WhatProtobufSaysIsOneLineOfOurLog) {
  const auto parse = [] {
    v1::GroupStatus message;
    EXPECT_FALSE(message.ParseFromString("\x0a\x01\xff"));  // name, a byte that is no UTF-8
  };
  EXPECT_THAT(LogOf(LogLevel::kInfo, parse),
              AllOf(HasSubstr(" W coordinator  protobuf: String field "
                              "'rootstock.v1.GroupStatus.name' contains invalid UTF-8"),
                    Not(HasSubstr("libprotobuf"))));
  EXPECT_EQ(LogOf(LogLevel::kError, parse), "");
}

}  // namespace
}  // namespace rootstock
