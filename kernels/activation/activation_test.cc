#include "kernels/activation/activation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/simd/test_data.h"

namespace rootstock::kernels {
namespace {

TEST(SiluMulTest, EqualsDoublesFromTinyToHuge) {
  for (int n : {1, 15, 64, 97}) {
    const int tokens = 3;
    std::vector<float> in = RandomFloats(tokens * 2 * n, 1, 6.0f);
    in[0] = 200.0f;
    in[2 * n] = -200.0f;
    std::vector<float> out(tokens * n);
    SiluMul(in.data(), tokens, n, out.data(), 3);
    for (int t = 0; t < tokens; ++t) {
      for (int i = 0; i < n; ++i) {
        const double g = in[t * 2 * n + i];
        const double want = g / (1 + std::exp(-g)) * in[t * 2 * n + n + i];
        ASSERT_NEAR(out[t * n + i], want, 1e-6 * (1 + std::fabs(want)));
      }
    }
  }
}

TEST(SiluMulTest, GivesNoSubnormalsThatWouldSlowTheNextLayer) {
  std::vector<float> in(2 * 40, 1.0f), out(40);
  for (int i = 0; i < 40; ++i) in[i] = -10.0f * static_cast<float>(i);
  SiluMul(in.data(), 1, 40, out.data(), 1);
  for (float x : out) EXPECT_NE(std::fpclassify(x), FP_SUBNORMAL) << x;
}

TEST(SiluMulTest, NanStaysNan) {
  const std::vector<float> in(64, NAN);
  std::vector<float> out(32, 0.0f);
  SiluMul(in.data(), 1, 32, out.data(), 1);
  for (float x : out) EXPECT_TRUE(std::isnan(x));
}

TEST(EmbedTest, RowsOutsideTheTableAreZero) {
  std::vector<float> table = RandomFloats(4 * 5, 2);
  const std::vector<uint16_t> half = CutToBf16(table);
  const std::vector<int32_t> ids = {10, 13, 9, 14, 12};
  for (bool bf16 : {false, true}) {
    std::vector<float> out(5 * 5, NAN);
    EmbedArgs args;
    args.table = bf16 ? static_cast<const void*>(half.data()) : table.data();
    args.bf16 = bf16;
    args.table_rows = 4;
    args.first_id = 10;
    args.ids = ids.data();
    args.tokens = 5;
    args.n = 5;
    args.out = out.data();
    EmbedRows(args, 2);
    for (int t = 0; t < 5; ++t) {
      const int row = ids[t] - 10;
      for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(out[t * 5 + i], row < 0 || row > 3 ? 0.0f : table[row * 5 + i]);
      }
    }
  }
}

}  // namespace
}  // namespace rootstock::kernels
