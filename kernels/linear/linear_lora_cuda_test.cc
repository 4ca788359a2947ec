// The weight-streaming products that shrink, and expand, on the way.
#include <gtest/gtest.h>

#include <cstring>
#include <tuple>

#include "kernels/activation/activation_cuda.h"
#include "kernels/linear/cuda_test_data.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/lora/lora_case.h"

namespace rootstock::kernels::cuda {
namespace {

// A matrix product with adapters. *One thread.*
class Product {
 public:
  // room: adapters that the step has room for.
  Product(int m, int n, int k, int targets, Mix mix, int room = 0)
      : case_(Type::kBF16, m, Targets(n, k, targets)),
        w_(Encode(Type::kBF16, Scaled(RandomFloats(size_t{1} * n * k, 3), k))),
        x_(Encode(Type::kBF16, RandomFloats(size_t{1} * m * k, 4))),
        out_(std::vector<std::byte>(size_t{2} * m * n)) {
    AddMix(mix, &case_);
    case_.set_room(room);
    case_.Build();
    args_.x = x_.get();
    args_.m = m;
    args_.w = w_.get();
    args_.n = n;
    args_.k = k;
    args_.out = out_.get();
    shrink_ = {case_.step(), case_.targets(), case_.targets()};
  }

  LinearArgs args() const { return args_; }
  LinearArgs Shrinking() const {
    LinearArgs args = args_;
    args.shrink = &shrink_;
    return args;
  }
  const LoraCase& adapters() const { return case_; }
  void Poison() {
    cudaMemset(out_.get(), 0xff, out_.size());
    cudaMemset(case_.step().v, 0xff, case_.step().v_floats * sizeof(float));
  }
  std::vector<std::byte> X() const { return x_.Get(); }
  std::vector<std::byte> Out() const { return out_.Get(); }
  std::vector<uint32_t> V() const {
    std::vector<uint32_t> v(case_.step().v_floats);
    EXPECT_EQ(cudaSuccess, cudaMemcpy(v.data(), case_.step().v, 4 * v.size(), cudaMemcpyDefault));
    return v;
  }

 private:
  static LoraTargets Targets(int n, int k, int count) {
    LoraTargets targets{1, count};
    targets.in = k;
    for (int i = 0; i < count; ++i) {
      targets.module[i] = i + 4;
      targets.column[i] = i * (n / count);
      targets.features[i] = n / count;
    }
    return targets;
  }
  static std::vector<float> Scaled(std::vector<float> w, int k) {
    for (float& x : w) x /= std::sqrt(static_cast<float>(k));
    return w;
  }

  LoraCase case_;
  DeviceArray<std::byte> w_, x_, out_;
  LinearArgs args_;
  LinearShrink shrink_;
};

struct Shape {
  int n, k, targets;
};

void ExpectShrinks(Linear* linear, int m, Mix mix, const Shape& shape) {
  SCOPED_TRACE(testing::Message() << "n " << shape.n << " k " << shape.k);
  Product product(m, shape.n, shape.k, shape.targets, mix);
  const LinearArgs shrinking = product.Shrinking();
  const bool shrinks = m <= 16 || shape.n < 16896;  // not wide tiles of many rows
  EXPECT_EQ(linear->Shrinks(shrinking), shrinks);
  if (!shrinks) return;
  product.Poison();
  ASSERT_EQ(linear->Run(product.args(), nullptr), "");
  LoraShrink(product.adapters().step(), product.adapters().targets(), product.args().x, m, nullptr);
  const std::vector<std::byte> out = product.Out();
  const std::vector<uint32_t> v = product.V();
  product.Poison();
  ASSERT_EQ(linear->Run(shrinking, nullptr), "");
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
  EXPECT_EQ(product.Out(), out);
  EXPECT_EQ(product.V(), v);
}

void ExpectExpands(Linear* linear, int m, Mix mix, const Shape& shape, int room = 0) {
  SCOPED_TRACE(testing::Message() << "n " << shape.n << " k " << shape.k << " room " << room);
  Product product(m, shape.n, shape.k, shape.targets, mix, room);
  LinearArgs gated = product.Shrinking();
  const bool gates = m > 8 && m <= 64;
  EXPECT_EQ(linear->Gates(gated), gates);
  if (!gates) return;
  gated.gated = true;
  product.Poison();
  ASSERT_EQ(linear->Run(product.args(), nullptr), "");
  const LoraStep step = product.adapters().step();
  LoraShrink(step, product.adapters().targets(), product.args().x, m, nullptr);
  DeviceArray<std::byte> want(std::vector<std::byte>(size_t{1} * m * shape.n));
  SiluMul({Type::kBF16, gated.out, shape.n / 2, m, want.get()}, step, product.adapters().targets(),
          nullptr);
  product.Poison();
  for (int i = 0; i < 2; ++i) ASSERT_EQ(linear->Run(gated, nullptr), "");
  product.Poison();  // no v of the launch before
  ASSERT_EQ(linear->Run(gated, nullptr), "");
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
  std::vector<std::byte> got = product.Out();
  got.resize(want.size());
  EXPECT_EQ(got, want.Get());
}

class LoraLinearCudaTest : public testing::TestWithParam<std::tuple<int, Mix>> {
 protected:
  void SetUp() override {
    std::string error;
    linear_ = MakeLinear(&error);
    ASSERT_NE(linear_, nullptr) << error;
  }
  std::unique_ptr<Linear> linear_;
};

// Tiles of one, two and four instructions, one block and two for a tile, tails of k.
TEST_P(LoraLinearCudaTest, ShrinksOnTheWayWithTheSameBits) {
  const auto [m, mix] = GetParam();
  ExpectShrinks(linear_.get(), m, mix, {4096, 4104, 1});
  ExpectShrinks(linear_.get(), m, mix, {6144, 2056, 3});
  ExpectShrinks(linear_.get(), m, mix, {28672, 520, 2});
}

// Tails of a tile's columns, more pairs of tiles and columns than warps, one launch behind another.
TEST_P(LoraLinearCudaTest, GatedItExpandsOnTheWayWithTheSameBits) {
  const auto [m, mix] = GetParam();
  ExpectExpands(linear_.get(), m, mix, {27648, 200, 2});
  if (m % 16 == 0) ExpectExpands(linear_.get(), m, mix, {17024, 2312, 2});
}

// By the kernel for many adapters, which a step of few may run by too.
TEST_P(LoraLinearCudaTest, GatedItExpandsRowsWithTheSameBits) {
  const auto [m, mix] = GetParam();
  if (m <= 32) return;
  ExpectExpands(linear_.get(), m, mix, {27648, 200, 2}, m);
  ExpectExpands(linear_.get(), m, mix, {17024, 2312, 2}, m);
}

TEST(FewLoraLinearLaunches, Shrinks) {
  std::string error;
  const std::unique_ptr<Linear> linear = MakeLinear(&error);
  ASSERT_NE(linear, nullptr) << error;
  ExpectShrinks(linear.get(), 13, Mix::kMixedRanks, {2048, 1032, 1});
}

TEST(FewLoraLinearLaunches, ShrinksOfManyRows) {
  std::string error;
  const std::unique_ptr<Linear> linear = MakeLinear(&error);
  ASSERT_NE(linear, nullptr) << error;
  ExpectShrinks(linear.get(), 24, Mix::kMixedRanks, {2048, 1032, 1});
  ExpectShrinks(linear.get(), 68, Mix::kMixedRanks, {6144, 1032, 1});
}

TEST(FewLoraLinearLaunches, Expands) {
  std::string error;
  const std::unique_ptr<Linear> linear = MakeLinear(&error);
  ASSERT_NE(linear, nullptr) << error;
  ExpectExpands(linear.get(), 33, Mix::kMixedRanks, {17024, 72, 2});
}

TEST(FewLoraLinearLaunches, ExpandsRows) {
  std::string error;
  const std::unique_ptr<Linear> linear = MakeLinear(&error);
  ASSERT_NE(linear, nullptr) << error;
  ExpectExpands(linear.get(), 33, Mix::kDistinctRanks, {17024, 72, 2});
  ExpectExpands(linear.get(), 33, Mix::kStacked, {17024, 72, 2}, 33);
}

INSTANTIATE_TEST_SUITE_P(Rows, LoraLinearCudaTest,
                         testing::Combine(testing::Values(1, 8, 13, 16, 24, 40, 64, 76),
                                          testing::Values(Mix::kIdentical, Mix::kDistinct,
                                                          Mix::kUniform, Mix::kMixedRanks,
                                                          Mix::kStacked, Mix::kDistinctRanks)));

class LoraLinearChainCudaTest : public testing::TestWithParam<int> {};

// Each product reads what a kernel ahead of it writes late.
TEST_P(LoraLinearChainCudaTest, AChainReadsWhatWasWrittenAhead) {
  constexpr int kLinks = 8;
  std::string error;
  const std::unique_ptr<Linear> linear = MakeLinear(&error);
  ASSERT_NE(linear, nullptr) << error;
  const int m = GetParam();
  Product product(m, 4096, 4096, 1, Mix::kDistinct);
  const auto run = [&](bool rides) {
    DeviceArray<std::byte> x(product.X());
    for (int i = 0; i < kLinks; ++i) {
      LinearArgs args = rides ? product.Shrinking() : product.args();
      args.x = x.get();
      EXPECT_EQ(linear->Run(args, nullptr), "");
      const LoraStep step = product.adapters().step();
      if (!rides) LoraShrink(step, product.adapters().targets(), args.x, m, nullptr);
      LoraExpand(step, product.adapters().targets(), 4096, args.out, m, nullptr);
      EXPECT_EQ(cudaSuccess, CopyLate(args.out, x.get(), x.size(), nullptr));
      if (!rides) {
        EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
      }
    }
    EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
    return x.Get();
  };
  const std::vector<std::byte> want = run(false);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(run(true), want);
}

INSTANTIATE_TEST_SUITE_P(Rows, LoraLinearChainCudaTest, testing::Values(13, 76));

}  // namespace
}  // namespace rootstock::kernels::cuda
