#include "kernels/norm/norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/simd/test_data.h"

namespace rootstock::kernels {
namespace {

TEST(NormTest, AddsAndNormalisesAnyWidthAndAnyRows) {
  for (int n : {1, 7, 64, 577}) {
    for (const std::vector<int32_t>& rows :
         {std::vector<int32_t>{}, std::vector<int32_t>{4, 0, 4}}) {
      const int tokens = 5;
      const std::vector<float> before = RandomFloats(tokens * n, 1),
                               delta = RandomFloats(tokens * n, 2);
      const std::vector<float> weight = RandomFloats(n, 3);
      std::vector<float> residual = before;
      std::vector<float> out(tokens * n, NAN);
      NormArgs args{residual.data(), delta.data(), weight.data(), 1e-5f, n, tokens};
      args.rows = rows.empty() ? nullptr : rows.data();
      args.num_rows = static_cast<int>(rows.size());
      args.out = out.data();
      AddRmsNorm(args, 3);
      for (int i = 0; i < tokens * n; ++i) ASSERT_EQ(residual[i], before[i] + delta[i]);
      const int outputs = rows.empty() ? tokens : static_cast<int>(rows.size());
      for (int i = 0; i < outputs; ++i) {
        const float* x = residual.data() + (rows.empty() ? i : rows[i]) * n;
        double squares = 0;
        for (int j = 0; j < n; ++j) squares += double{x[j]} * x[j];
        for (int j = 0; j < n; ++j) {
          ASSERT_NEAR(out[i * n + j], weight[j] * x[j] / std::sqrt(squares / n + 1e-5), 1e-5);
        }
      }
    }
  }
}

TEST(NormTest, WithoutDeltaLeavesTheResidual) {
  const std::vector<float> before = RandomFloats(20, 4), weight(10, 1.0f);
  std::vector<float> residual = before, out(20);
  NormArgs args{residual.data(), nullptr, weight.data(), 1e-6f, 10, 2};
  args.out = out.data();
  AddRmsNorm(args, 1);
  EXPECT_EQ(residual, before);
}

}  // namespace
}  // namespace rootstock::kernels
