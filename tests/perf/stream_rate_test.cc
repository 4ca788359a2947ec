#include "tests/perf/stream_rate.h"

#include <gtest/gtest.h>

namespace rootstock {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// `count` tokens, the first at `first` ms, then one in every `each`.
Arrivals Every(int first, int each, int count) {
  Arrivals out;
  for (int i = 0; i < count; ++i)
    out.push_back(Clock::time_point() + milliseconds(first + i * each));
  return out;
}

TEST(StreamRateTest, HowAStepsTokensSpreadOverTheStreamsDoesNotCount) {
  // Steps of 10 ms; the second stream hears of each 9 ms later, the third began two steps later.
  const auto round =
      RoundOf({Every(100, 10, 12), Every(109, 10, 12), Every(125, 10, 10)}, Clock::time_point());
  ASSERT_TRUE(round.ok()) << round.status();
  EXPECT_NEAR(round->tokens_per_second, 300.0, 1e-6);
  EXPECT_NEAR(round->first_tokens, 0.125, 1e-9);
  EXPECT_NEAR(round->output_per_second, 34 / 0.219, 1e-6);
}

TEST(StreamRateTest, OnlyWhileAllDecode) {
  Arrivals slow_start = Every(0, 50, 4);  // alone, until the other begins at 200
  for (const auto t : Every(200, 10, 11)) slow_start.push_back(t);
  const auto round = RoundOf({slow_start, Every(200, 10, 30)}, Clock::time_point());
  ASSERT_TRUE(round.ok()) << round.status();
  EXPECT_NEAR(round->tokens_per_second, 200.0, 1e-6);
}

TEST(StreamRateTest, StreamsThatDoNotOverlapAreRefused) {
  EXPECT_FALSE(RoundOf({Every(0, 10, 5), Every(100, 10, 5)}, Clock::time_point()).ok());
}

}  // namespace
}  // namespace rootstock
