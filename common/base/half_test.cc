#include "common/base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace rootstock {
namespace {

TEST(Half, BF16RoundsToNearestEven) {
  EXPECT_EQ(FloatToBF16(1.0f), 0x3f80);
  EXPECT_EQ(FloatToBF16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie, to even
  EXPECT_EQ(FloatToBF16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // tie, to even
  EXPECT_EQ(FloatToBF16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(FloatToBF16(-0.0f), 0x8000);
  EXPECT_EQ(FloatToBF16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(BF16ToFloat(FloatToBF16(std::bit_cast<float>(0x7f800001u)))));
  for (uint32_t v = 0; v < 0x10000; ++v) {
    const float f = BF16ToFloat(static_cast<uint16_t>(v));
    if (!std::isnan(f)) {
      ASSERT_EQ(FloatToBF16(f), v);
    }
  }
}

TEST(Half, F16ToFloatIsExact) {
  for (uint32_t v = 0; v < 0x10000; ++v) {
    const int exponent = v >> 10 & 31;
    const double fraction = v & 1023;
    const double sign = v & 0x8000 ? -1.0 : 1.0;
    const float got = F16ToFloat(static_cast<uint16_t>(v));
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(got), fraction != 0);
      EXPECT_EQ(std::isinf(got), fraction == 0);
    } else {
      const double want =
          exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      ASSERT_EQ(got, sign * want) << v;
    }
  }
}

TEST(Half, LoadFloatAtAnyAlignment) {
  uint8_t buffer[16] = {};
  const float f = -2.5f;
  std::memcpy(buffer + 1 + 4, &f, 4);
  EXPECT_EQ(LoadFloat(buffer + 1, DType::kF32, 1), -2.5f);
  const uint16_t b = FloatToBF16(3.0f);
  std::memcpy(buffer + 3, &b, 2);
  EXPECT_EQ(LoadFloat(buffer + 1, DType::kBF16, 1), 3.0f);
  const uint16_t h = 0x3c00;
  std::memcpy(buffer + 3, &h, 2);
  EXPECT_EQ(LoadFloat(buffer + 1, DType::kF16, 1), 1.0f);
}

}  // namespace
}  // namespace rootstock
