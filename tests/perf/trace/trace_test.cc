#include "tests/perf/trace/trace.h"

#include <cmath>

#include "gtest/gtest.h"

namespace rootstock {
namespace {

constexpr int kMany = 20000;

TEST(Trace, GapsHaveTheirRateAndCoefficientOfVariation) {
  for (const double cv : {1.0, 4.0}) {
    const auto trace = MakeTrace({.adapters = 10, .cv = cv, .rate = 5}, kMany);
    double mean = 0, square = 0, last = 0;
    for (const TraceRequest& r : trace) {
      const double gap = r.at - last;
      last = r.at;
      mean += gap / kMany;
      square += gap * gap / kMany;
    }
    EXPECT_NEAR(mean, 0.2, 0.02) << cv;
    EXPECT_NEAR(std::sqrt(square - mean * mean) / mean, cv, 0.1 * cv) << cv;
  }
}

TEST(Trace, AdaptersAreUniformAtOneAndSkewedBelow) {
  for (const double alpha : {1.0, 0.3}) {
    int first_tenth = 0;
    for (const TraceRequest& r : MakeTrace({.adapters = 1000, .alpha = alpha}, kMany)) {
      ASSERT_GE(r.adapter, 0);
      ASSERT_LT(r.adapter, 1000);
      first_tenth += r.adapter < 100;
    }
    EXPECT_NEAR(static_cast<double>(first_tenth) / kMany, std::pow(0.1, alpha), 0.02) << alpha;
  }
}

TEST(Trace, OtherAdaptersAskForTheSameWork) {
  const auto many = MakeTrace({.adapters = 1000, .min_length = 8, .max_length = 512}, 500);
  const auto few = MakeTrace({.adapters = 8, .min_length = 8, .max_length = 512}, 500);
  for (size_t i = 0; i < many.size(); ++i) {
    EXPECT_EQ(many[i].prompt_tokens, few[i].prompt_tokens);
    EXPECT_EQ(many[i].output_tokens, few[i].output_tokens);
    EXPECT_EQ(many[i].at, few[i].at);
    EXPECT_GE(many[i].prompt_tokens, 8);
    EXPECT_LT(many[i].output_tokens, 512);
  }
}

TEST(Trace, InTurnAsksForTheSameWorkOfOneAdapterAfterTheOther) {
  const auto drawn = MakeTrace({.adapters = 64, .max_length = 512}, 500);
  const auto in_turn = MakeTrace({.adapters = 64, .max_length = 512, .in_turn = true}, 500);
  for (size_t i = 0; i < drawn.size(); ++i) {
    EXPECT_EQ(in_turn[i].adapter, static_cast<int>(i % 64));
    EXPECT_EQ(drawn[i].prompt_tokens, in_turn[i].prompt_tokens);
    EXPECT_EQ(drawn[i].at, in_turn[i].at);
  }
}

}  // namespace
}  // namespace rootstock
