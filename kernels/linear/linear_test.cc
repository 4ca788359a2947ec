#include "kernels/linear/linear.h"

#include <gtest/gtest.h>

#include "kernels/linear/linear_simd.h"
#include "kernels/simd/test_data.h"

namespace rootstock::kernels {
namespace {

std::vector<float> Reference(const std::vector<float>& x, const std::vector<float>& w,
                             const std::vector<float>& bias, int m, int n, int k) {
  std::vector<float> out(static_cast<size_t>(m) * n);
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = bias[j];
      for (int l = 0; l < k; ++l) sum += double{x[i * k + l]} * w[j * k + l];
      out[i * n + j] = static_cast<float>(sum);
    }
  }
  return out;
}

struct Shape {
  int n, k;
};

class LinearTest : public testing::TestWithParam<bool> {};

std::vector<float> Multiply(const LinearArgs& args, int threads) {
  std::vector<float> packed(static_cast<size_t>(kMaxPackedRows) * args.k, NAN);
  if (args.m <= kMaxDotRows) {
    LinearDot(args, threads);
  } else {
    LinearPacked(args, packed.data(), threads);
  }
  return {args.out, args.out + static_cast<size_t>(args.m) * args.n};
}

TEST_P(LinearTest, EqualsDoubleSumsAtOddShapes) {
  for (const Shape shape : {Shape{1, 1}, {7, 13}, {24, 64}, {25, 257}, {97, 300}, {60, 576}}) {
    std::vector<float> w = RandomFloats(shape.n * shape.k, 1);
    const std::vector<uint16_t> half = CutToBf16(w);
    const std::vector<float> bias = RandomFloats(shape.n, 2);
    for (int m : {1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 64}) {
      const std::vector<float> x = RandomFloats(m * shape.k, 3);
      std::vector<float> out(m * shape.n, NAN);
      const LinearArgs args{
          x.data(),    m,         GetParam() ? static_cast<const void*>(half.data()) : w.data(),
          GetParam(),  shape.n,   shape.k,
          bias.data(), out.data()};
      const std::vector<float> want = Reference(x, w, bias, m, shape.n, shape.k);
      for (int threads : {1, 3}) {
        const std::vector<float> got = Multiply(args, threads);
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_NEAR(got[i], want[i], 2e-5 + 1e-6 * shape.k)
              << "m " << m << " n " << shape.n << " k " << shape.k << " at " << i;
        }
      }
    }
  }
}

TEST_P(LinearTest, ARowsBitsDoNotDependOnTheOtherRowsOrThreads) {
  const int n = 50, k = 100;
  std::vector<float> w = RandomFloats(n * k, 4);
  const std::vector<uint16_t> half = CutToBf16(w);
  const std::vector<float> x = RandomFloats(64 * k, 5);
  std::vector<float> all(64 * n), some(64 * n);
  LinearArgs args{
      x.data(),   64,        GetParam() ? static_cast<const void*>(half.data()) : w.data(),
      GetParam(), n,         k,
      nullptr,    all.data()};
  Multiply(args, 3);
  args.out = some.data();
  args.m = 19;
  Multiply(args, 1);
  for (int i = 0; i < 19 * n; ++i) ASSERT_EQ(all[i], some[i]);
}

INSTANTIATE_TEST_SUITE_P(Weights, LinearTest, testing::Bool());

TEST(WidenTest, IsExactAtAnyLength) {
  for (size_t n : {1u, 63u, 1000u}) {
    std::vector<float> x = RandomFloats(n, 6, 1e10f);
    const std::vector<uint16_t> half = CutToBf16(x);
    std::vector<float> out(n);
    WidenBf16(half.data(), n, out.data(), 3);
    EXPECT_EQ(out, x);
  }
}

#if defined(__x86_64__)
TEST(LinearIsaTest, EveryInstructionSetAgrees) {
  const int m = 9, n = 40, k = 77;
  const std::vector<float> w = RandomFloats(n * k, 7), x = RandomFloats(m * k, 8);
  std::vector<float> a(m * n), b(m * n), packed(kMaxPackedRows * k);
  LinearArgs args{x.data(), m, w.data(), false, n, k, nullptr, a.data()};
  generic::PackRange(args, 0, k, packed.data());
  generic::LinearPackedRange(args, packed.data(), 0, n);
  if (HostIsa() == Isa::kGeneric) return;
  args.out = b.data();
  avx2::PackRange(args, 0, k, packed.data());
  avx2::LinearPackedRange(args, packed.data(), 0, n);
  for (int i = 0; i < m * n; ++i) ASSERT_NEAR(a[i], b[i], 1e-5);
}
#endif

}  // namespace
}  // namespace rootstock::kernels
