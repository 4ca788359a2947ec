#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/activation/activation_cuda.h"
#include "kernels/linear/cuda_test_data.h"
#include "kernels/linear/plain_cuda.h"
#include "kernels/linear/prefill_cuda.h"
#include "kernels/lora/lora_case.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr double kTolerance = 4e-3;

struct Shape {
  int m, n, k;
};

class PrefillLinearTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string error;
    prefill_ = PrefillLinear::Create(&error);
    ASSERT_EQ(error, "");
    ASSERT_NE(prefill_, nullptr) << "the kernel is for sm_90";
  }

  // What `args` should give, in f32 on the host, [m, n].
  static std::vector<float> Sums(const LinearArgs& args) {
    Buffer want(sizeof(float) * args.m * args.n);
    LinearArgs plain = args;
    plain.gated = false;
    plain.out_type = Type::kF32;
    plain.out = want.get();
    CheckCuda(PlainLinear(plain, nullptr), "plain");
    return ReadOut(plain);
  }

  static std::vector<float> Gated(const std::vector<float>& sums, int m, int n) {
    std::vector<float> out(static_cast<size_t>(m) * n / 2);
    for (int t = 0; t < m; ++t) {
      for (int i = 0; i < n / 2; ++i) {
        const float gate = sums[static_cast<size_t>(t) * n + i];
        out[static_cast<size_t>(t) * n / 2 + i] =
            gate / (1.0f + std::exp(-gate)) * sums[static_cast<size_t>(t) * n + n / 2 + i];
      }
    }
    return out;
  }

  static std::vector<float> Out(LinearArgs args) {
    if (args.gated) args.n /= 2;
    return ReadOut(args);
  }

  std::unique_ptr<PrefillLinear> prefill_;
};

TEST_F(PrefillLinearTest, TakesLongStepsWhoseTargetsBeginOnHalvesOfTiles) {
  TestCase c(Type::kBF16, Type::kBF16, 300, 1280, 64, false);
  EXPECT_TRUE(PrefillLinear::Takes(c.args));
  const auto with = [&](std::vector<int> columns, std::vector<int> features) {
    LinearExpand expand;
    expand.targets.count = static_cast<int>(columns.size());
    for (size_t i = 0; i < columns.size(); ++i) {
      expand.targets.column[i] = columns[i], expand.targets.features[i] = features[i];
    }
    LinearArgs args = c.args;
    args.expand = &expand;
    return PrefillLinear::Takes(args);
  };
  EXPECT_TRUE(with({0, 1024, 1152}, {1024, 128, 128}));
  EXPECT_TRUE(with({0, 1152}, {1152, 128}));
  EXPECT_FALSE(with({0, 1152}, {1152, 72}));
  EXPECT_FALSE(with({0, 576, 928}, {576, 352, 352}));
  LinearArgs args = c.args;
  args.m = kDecodeTokens;
  EXPECT_FALSE(PrefillLinear::Takes(args));
  args = c.args;
  args.out_type = Type::kF32;
  EXPECT_FALSE(PrefillLinear::Takes(args));
  args = c.args;
  args.n = 1284;
  EXPECT_FALSE(PrefillLinear::Takes(args));
  args = c.args;
  args.n = 1152;
  args.gated = true;
  EXPECT_FALSE(PrefillLinear::Takes(args));
}

class PrefillLinearShapeTest : public PrefillLinearTest,
                               public testing::WithParamInterface<Shape> {};

// Tails of m, n and k, fewer tiles than blocks and more, orders of tiles.
TEST_P(PrefillLinearShapeTest, GivesTheSums) {
  const auto [m, n, k] = GetParam();
  TestCase c(Type::kBF16, Type::kBF16, m, n, k, m % 2 == 1);
  ASSERT_TRUE(PrefillLinear::Takes(c.args));
  const std::vector<float> want = Sums(c.args);
  ASSERT_EQ(prefill_->Run(c.args, nullptr), "");
  CheckCuda(cudaDeviceSynchronize(), "run");
  EXPECT_LT(RowError(Out(c.args), want, n), kTolerance);
}

TEST_P(PrefillLinearShapeTest, GatedGivesSiluTimesUp) {
  const auto [m, n, k] = GetParam();
  TestCase c(Type::kBF16, Type::kBF16, m, n, k, false);
  c.args.gated = true;
  if (!PrefillLinear::Takes(c.args)) {
    EXPECT_NE(n % 256, 0);
    return;
  }
  const std::vector<float> want = Gated(Sums(c.args), m, n);
  ASSERT_EQ(prefill_->Run(c.args, nullptr), "");
  CheckCuda(cudaDeviceSynchronize(), "run");
  EXPECT_LT(RowError(Out(c.args), want, n / 2), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Shapes, PrefillLinearShapeTest,
                         testing::Values(Shape{257, 256, 64}, Shape{300, 392, 200},
                                         Shape{1023, 1280, 72}, Shape{2048, 4096, 1024},
                                         Shape{2049, 6144, 520}, Shape{513, 28672, 136}));

// Of the step's adapters.
class PrefillLoraTest : public PrefillLinearTest, public testing::WithParamInterface<Mix> {
 protected:
  void Check(const Shape& shape, const std::vector<int>& features, bool gated) {
    const auto [m, n, k] = shape;
    SCOPED_TRACE(testing::Message() << "m " << m << " n " << n << " k " << k);
    LoraTargets targets{1, static_cast<int>(features.size())};
    targets.in = k;
    for (int i = 0, column = 0; i < targets.count; ++i) {
      targets.module[i] = i + 4;
      targets.column[i] = column;
      targets.features[i] = features[i];
      column += features[i];
    }
    LoraCase lora(Type::kBF16, m, targets);
    AddMix(GetParam(), &lora);
    lora.Build();
    const std::vector<float> x = Rounded(m * k, 4, 1.0f);
    const DeviceArray<std::byte> x_device(Encode(Type::kBF16, x));
    const DeviceArray<std::byte> w(
        Encode(Type::kBF16, Rounded(n * k, 3, 1 / std::sqrt(static_cast<float>(k)))));
    Buffer out(size_t{2} * m * n);
    LinearExpand expand{lora.step(), targets};
    LinearArgs args{.x = x_device.get(), .m = m, .w = w.get(), .n = n, .k = k, .out = out.get()};
    args.gated = gated;
    args.expand = &expand;
    ASSERT_TRUE(PrefillLinear::Takes(args));
    std::vector<float> want = Sums(args);
    lora.AddReference(x, n, want);
    if (gated) want = Gated(want, m, n);
    for (const int sms : {0, 4}) {  // 0: before the product; else beside it
      const LoraStep step = lora.step();
      CheckCuda(cudaMemset(step.v, 0xff, step.v_floats * sizeof(float)), "poison");
      CheckCuda(cudaMemset(args.out, 0xff, size_t{2} * m * n), "poison");
      expand.beside = sms > 0;
      if (sms > 0) {
        LoraShrinkBeside(step, targets, args.x, sms, nullptr);
      } else {
        LoraShrink(step, targets, args.x, m, nullptr);
      }
      ASSERT_EQ(prefill_->Run(args, nullptr), "");
      CheckCuda(cudaDeviceSynchronize(), "run");
      EXPECT_LT(RowError(Out(args), want, gated ? n / 2 : n), kTolerance) << sms;
    }
  }

  static std::vector<float> Rounded(int n, uint32_t seed, float scale) {
    std::vector<float> x = RandomFloats(n, seed);
    for (float& value : x) value *= scale;
    RoundTo(Type::kBF16, x);
    return x;
  }
};

TEST_P(PrefillLoraTest, AddsWhatLoraExpandAdds) {
  Check({257, 256, 64}, {256}, false);
  Check({300, 1280, 520}, {1024, 128, 128}, false);
  Check({1025, 584, 136}, {256, 328}, false);
}

TEST_P(PrefillLoraTest, GatedAddsItBeforeSilu) {
  Check({300, 512, 520}, {256, 256}, true);
  Check({700, 768, 72}, {384, 384}, true);
}

// Each product reads what the one before wrote, and the same plan gives the same bits.
TEST_P(PrefillLoraTest, AChainReadsWhatWasWrittenAhead) {
  constexpr int kLinks = 12, kM = 300, kWidth = 1024;
  const LoraTargets targets{0, 1, {3}, {0}, {kWidth}, kWidth};
  LoraCase lora(Type::kBF16, kM, targets);
  AddMix(GetParam(), &lora);
  lora.Build();
  const DeviceArray<std::byte> w(
      Encode(Type::kBF16, Rounded(kWidth * kWidth, 3, 1 / std::sqrt(1.0f * kWidth))));
  const std::vector<std::byte> x = Encode(Type::kBF16, Rounded(kM * kWidth, 4, 1.0f));
  LinearExpand expand{lora.step(), targets};
  const auto run = [&](bool wait) {
    const DeviceArray<std::byte> of[2] = {DeviceArray<std::byte>(x), DeviceArray<std::byte>(x)};
    for (int i = 0; i < kLinks; ++i) {
      LinearArgs args{.x = of[i % 2].get(), .m = kM, .w = w.get(), .n = kWidth, .k = kWidth};
      args.out = of[(i + 1) % 2].get();
      args.expand = i % 3 == 0 ? nullptr : &expand;
      expand.beside = i % 3 == 1;
      if (expand.beside) {
        LoraShrinkBeside(expand.step, targets, args.x, 4, nullptr);
      } else if (args.expand != nullptr) {
        LoraShrink(expand.step, targets, args.x, kM, nullptr);
      }
      EXPECT_EQ(prefill_->Run(args, nullptr), "");
      if (wait) CheckCuda(cudaDeviceSynchronize(), "run");
    }
    CheckCuda(cudaDeviceSynchronize(), "run");
    return of[0].Get();
  };
  const std::vector<std::byte> want = run(true);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(run(false), want);
}

INSTANTIATE_TEST_SUITE_P(Mixes, PrefillLoraTest,
                         testing::Values(Mix::kNone, Mix::kIdentical, Mix::kDistinct, Mix::kUniform,
                                         Mix::kZipf, Mix::kMixedRanks, Mix::kStacked));

}  // namespace
}  // namespace rootstock::kernels::cuda
