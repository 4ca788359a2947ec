#include "common/base/status.h"

#include <gtest/gtest.h>

namespace rootstock {
namespace {

TEST(Status, MessageNamesFieldAndValue) {
  const absl::Status s = InvalidField(Reason::kRankTooHigh, "r", "512", "the ceiling is 256");
  EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(s.message()), "r=512: the ceiling is 256");
  const auto d = GetErrorDetail(s);
  ASSERT_TRUE(d.has_value());
  EXPECT_EQ(d->reason, Reason::kRankTooHigh);
  EXPECT_EQ(d->field, "r");
  EXPECT_EQ(d->value, "512");
}

TEST(Status, AnnotateKeepsDetail) {
  const absl::Status s =
      Annotate(InvalidField(Reason::kDtype, "dtype", "I8", "must be a float"), "adapter a");
  EXPECT_EQ(std::string(s.message()), "adapter a: dtype=I8: must be a float");
  EXPECT_EQ(GetErrorDetail(s)->reason, Reason::kDtype);
}

TEST(Status, RetryHintsSurviveAnnotation) {
  EXPECT_FALSE(GetRetryAfterMs(absl::InternalError("x")).has_value());
  const absl::Status s = WithRetryAfter(absl::ResourceExhaustedError("full"), 1500);
  EXPECT_EQ(GetRetryAfterMs(Annotate(s, "queue")), 1500);
}

TEST(Status, EveryReasonHasAName) {
  for (int i = 0; i <= static_cast<int>(Reason::kInternal); ++i) {
    const auto reason = static_cast<Reason>(i);
    EXPECT_EQ(ReasonFromName(ReasonName(reason)), reason) << i;
  }
}

TEST(Status, LongValuesAreCut) {
  const absl::Status s = InvalidField(Reason::kDtype, "f", std::string(10000, 'x'), "t");
  EXPECT_LT(s.message().size(), 300u);
}

}  // namespace
}  // namespace rootstock
