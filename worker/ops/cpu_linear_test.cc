#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/base/half.h"
#include "worker/ops/cpu_ops.h"

namespace rootstock {
namespace {

// Whole numbers over 8: exact in bf16.
float Value(size_t i, size_t seed) {
  return static_cast<float>((i * 7919 + seed * 104729) % 31) / 8.0f - 2.0f;
}

std::vector<float> Values(size_t n, size_t seed) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = Value(i, seed);
  return out;
}

// Row counts on both sides of every change of algorithm; more weights than one widened tile.
TEST(CpuLinearTest, EveryRowCountAndTypeGivesTheSameNumbers) {
  const int n = 1100, k = 300;
  const std::vector<float> w = Values(size_t{1} * n * k, 1), bias = Values(n, 2);
  std::vector<uint16_t> half;
  for (const float x : w) half.push_back(FloatToBF16(x));
  CpuOps ops(2, {});
  ASSERT_TRUE(ops.BeginStep({}).ok());
  for (const int m : {1, 4, 5, 16, 64, 65, 130}) {
    const std::vector<float> x = Values(size_t{1} * m * k, 3);
    std::vector<float> a(size_t{1} * m * n, NAN), b = a;
    ops.MatMul(x.data(), m, {w.data(), DType::kF32, n, k}, bias.data(), a.data());
    ops.MatMul(x.data(), m, {half.data(), DType::kBF16, n, k}, bias.data(), b.data());
    for (int i = 0; i < m; i += 3) {
      for (int j = 0; j < n; j += 7) {
        double sum = bias[j];
        for (int l = 0; l < k; ++l) sum += double{x[i * k + l]} * w[j * k + l];
        ASSERT_NEAR(a[i * n + j], sum, 1e-3) << "m " << m << " at " << i << ", " << j;
        ASSERT_NEAR(b[i * n + j], sum, 1e-3) << "m " << m << " at " << i << ", " << j;
      }
    }
  }
  EXPECT_TRUE(ops.EndStep().ok());
}

}  // namespace
}  // namespace rootstock
