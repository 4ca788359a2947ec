#include "worker/parallel/watchdog.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace rootstock {
namespace {

// Needs no GPU: what NCCL reports comes by way of `ask`.
TEST(WatchdogTest, WhatTheLibraryReportsIsALossToldOnce) {
  std::promise<GroupLoss> told;
  std::atomic<int> asked = 0, losses = 0;
  Watchdog::Options options;
  options.limit = std::chrono::hours(1);
  options.ask = [&]() -> std::optional<GroupLoss> {
    if (++asked < 3) return std::nullopt;
    return GroupLoss{GroupLoss::Cause::kNcclError, "remote process exited", "remote_error"};
  };
  options.on_loss = [&](const GroupLoss& loss) {
    if (++losses == 1) told.set_value(loss);
  };
  auto watchdog = Watchdog::Start(std::move(options));
  ASSERT_TRUE(watchdog.ok());
  std::future<GroupLoss> loss = told.get_future();
  ASSERT_EQ(loss.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  const GroupLoss got = loss.get();
  EXPECT_EQ(got.cause, GroupLoss::Cause::kNcclError);
  EXPECT_EQ(got.nccl_code, "remote_error");
  EXPECT_EQ(got.why, "remote process exited");
  EXPECT_EQ(asked, 3);
  watchdog->reset();
  EXPECT_EQ(losses, 1);
}

}  // namespace
}  // namespace rootstock
