#include "coordinator/rpc/backpressure.h"

#include "gtest/gtest.h"

namespace rootstock {
namespace {

class BackpressureTest : public ::testing::Test {
 protected:
  void Update(int seconds, size_t messages) {
    now_ = absl::UnixEpoch() + absl::Seconds(seconds);
    backpressure_.Update(messages);
  }
  Metrics metrics_;
  Counter seconds_ = metrics_.MakeCounter("waited_seconds_total", "").At();
  absl::Time now_;
  Backpressure backpressure_{{seconds_, [this] { return now_; }}};
};

TEST_F(BackpressureTest, AClientThatTakesEachMessageBeforeTheNextHasNone) {
  for (int i = 0; i < 10; ++i) {
    Update(2 * i, 1);
    Update(2 * i + 1, 0);
  }
  EXPECT_EQ(seconds_.Value(), 0);
}

TEST_F(BackpressureTest, CountsFromTheSecondMessageUntilTheLastIsTakenAndAsItPasses) {
  Update(0, 1);
  Update(5, 2);
  EXPECT_EQ(seconds_.Value(), 0);
  Update(8, 3);
  EXPECT_EQ(seconds_.Value(), 3);
  Update(9, 2);
  Update(10, 1);
  EXPECT_EQ(seconds_.Value(), 5);
  Update(12, 0);
  EXPECT_EQ(seconds_.Value(), 7);
  Update(50, 1);
  Update(60, 0);
  EXPECT_EQ(seconds_.Value(), 7);
}

}  // namespace
}  // namespace rootstock
