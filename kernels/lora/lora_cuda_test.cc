#include "kernels/lora/lora_cuda.h"

#include <gtest/gtest.h>

#include <tuple>

#include "kernels/linear/linear_cuda.h"
#include "kernels/lora/lora_case.h"

namespace rootstock::kernels::cuda {
namespace {

struct Shape {
  int tokens, in, column, features, gap;  // target i begins at column + i · (features + gap)
};

LoraTargets Targets(const Shape& s) {
  LoraTargets targets{2, kMaxLoraTargets};
  targets.in = s.in;
  for (int i = 0; i < kMaxLoraTargets; ++i) {
    targets.module[i] = i + 1;
    targets.column[i] = s.column + i * (s.features + s.gap);
    targets.features[i] = s.features;
  }
  return targets;
}

int Width(const Shape& s) { return s.column + kMaxLoraTargets * (s.features + s.gap); }

// Shrink and expand of `c` on `out` [tokens, width]. on_any: by the kernel of any GPU.
std::vector<float> OnGpu(const LoraCase& c, const std::vector<float>& x, int width,
                         const std::vector<float>& out, bool on_any = false) {
  DeviceArray<std::byte> x_device(Encode(c.type(), x));
  DeviceArray<std::byte> out_device(Encode(c.type(), out));
  EXPECT_EQ(cudaSuccess, cudaMemset(c.step().v, 0xff, c.step().v_floats * sizeof(float)));
  if (on_any) {
    LoraShrinkLongOnAny(c.step(), c.targets(), x_device.get(), nullptr);
  } else {
    LoraShrink(c.step(), c.targets(), x_device.get(), c.tokens(), nullptr);
  }
  LoraExpand(c.step(), c.targets(), width, out_device.get(), c.tokens(), nullptr);
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
  EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
  return Decode(c.type(), out_device.Get());
}

class LoraCudaTest : public testing::TestWithParam<std::tuple<Type, Mix, Shape>> {};

TEST_P(LoraCudaTest, MatchesTheCpuAndARowStandsAlone) {
  const auto& [type, mix, shape] = GetParam();
  LoraCase c(type, shape.tokens, Targets(shape));
  AddMix(mix, &c);
  c.Build();
  const int width = Width(shape);
  std::vector<float> x = RandomFloats(static_cast<size_t>(shape.tokens) * shape.in, 11);
  std::vector<float> before = RandomFloats(static_cast<size_t>(shape.tokens) * width, 12);
  RoundTo(type, x);
  RoundTo(type, before);
  const std::vector<float> got = OnGpu(c, x, width, before);
  std::vector<float> want = before;
  c.AddReference(x, width, want);
  EXPECT_LT(RowError(got, want, width), Tolerance(type));
  if (mix == Mix::kNone) {
    EXPECT_EQ(got, before);
  }
  EXPECT_EQ(OnGpu(c, x, width, before), got);
  for (int t = 0; t < shape.tokens && shape.tokens <= 64; t += 5) {
    const auto row = [t](const std::vector<float>& of, int n) {
      return std::vector<float>(of.begin() + t * n, of.begin() + (t + 1) * n);
    };
    EXPECT_EQ(OnGpu(c.Alone(t), row(x, shape.in), width, row(before, width)), row(got, width)) << t;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Decode, LoraCudaTest,
    testing::Combine(testing::Values(Type::kF32, Type::kBF16),
                     testing::Values(Mix::kNone, Mix::kIdentical, Mix::kDistinct, Mix::kUniform,
                                     Mix::kZipf, Mix::kMixedRanks, Mix::kStacked),
                     testing::Values(Shape{64, 512, 0, 192, 0}, Shape{19, 96, 16, 32, 8},
                                     Shape{3, 24, 0, 40, 0}, Shape{33, 4104, 64, 200, 24},
                                     Shape{5, 17, 3, 9, 1})));
INSTANTIATE_TEST_SUITE_P(
    Long, LoraCudaTest,
    testing::Combine(testing::Values(Type::kF32, Type::kBF16),
                     testing::Values(Mix::kIdentical, Mix::kMixedRanks, Mix::kStacked),
                     testing::Values(Shape{257, 576, 0, 136, 0}, Shape{700, 4096, 64, 64, 0},
                                     Shape{65, 200, 0, 24, 0}, Shape{300, 40, 5, 24, 3},
                                     Shape{321, 1096, 64, 128, 64}, Shape{1111, 328, 0, 256, 0},
                                     Shape{8300, 136, 0, 24, 0})));

class LoraLongTest : public testing::TestWithParam<std::tuple<Mix, Shape>> {};

TEST_P(LoraLongTest, TheShrinkOfAnyGpuMatchesTheCpu) {
  const auto& [mix, shape] = GetParam();
  LoraCase c(Type::kBF16, shape.tokens, Targets(shape));
  AddMix(mix, &c);
  c.Build();
  const int width = Width(shape);
  std::vector<float> x = RandomFloats(static_cast<size_t>(shape.tokens) * shape.in, 11);
  RoundTo(Type::kBF16, x);
  std::vector<float> want(static_cast<size_t>(shape.tokens) * width);
  const std::vector<float> got = OnGpu(c, x, width, want, /*on_any=*/true);
  c.AddReference(x, width, want);
  EXPECT_LT(RowError(got, want, width), Tolerance(Type::kBF16));
  EXPECT_EQ(OnGpu(c, x, width, std::vector<float>(want.size()), /*on_any=*/true), got);
}

INSTANTIATE_TEST_SUITE_P(
    Any, LoraLongTest,
    testing::Combine(testing::Values(Mix::kIdentical, Mix::kMixedRanks, Mix::kStacked),
                     testing::Values(Shape{257, 576, 0, 136, 0}, Shape{700, 4096, 64, 64, 0},
                                     Shape{300, 40, 5, 24, 3}, Shape{321, 1096, 64, 128, 64})));

// The rows of x beyond 2^32 elements give what the same rows give at its beginning.
TEST(LoraCudaTest, LongShrinksReadRowsBeyondFourBillionElements) {
  constexpr int kIn = 65536, kHigh = 65540;
  LoraTargets targets{0, 1};
  targets.in = kIn;
  targets.features[0] = 64;
  const std::vector<std::byte> rows =
      Encode(Type::kBF16, RandomFloats(size_t{2} * kIn, 5));  // neighbours
  // v of both rows, by the kernel of this GPU and by that of any.
  const auto shrunk = [&](int token) {
    LoraCase c(Type::kBF16, token + 2, targets);
    c.Add({16}, {token, token + 1}, 1);
    c.Build();
    const size_t bytes = size_t{2} * kIn * (token + 2);
    const DeviceArray<std::byte> x(bytes);
    EXPECT_EQ(cudaSuccess, cudaMemcpy(x.get() + bytes - rows.size(), rows.data(), rows.size(),
                                      cudaMemcpyHostToDevice));
    std::vector<float> of_both;
    std::vector<float> v(2 * kMaxLoraTargets * kMaxLoraRank);
    for (const bool on_any : {false, true}) {
      EXPECT_EQ(cudaSuccess, cudaMemset(c.step().v, 0xff, v.size() * sizeof(float)));
      if (on_any) {
        LoraShrinkLongOnAny(c.step(), targets, x.get(), nullptr);
      } else {
        LoraShrink(c.step(), targets, x.get(), kHigh, nullptr);
      }
      EXPECT_EQ(cudaSuccess,
                cudaMemcpy(v.data(), c.step().v, v.size() * sizeof(float), cudaMemcpyDeviceToHost));
      for (int row = 0; row < 2; ++row) {
        const auto from = v.begin() + row * kMaxLoraTargets * kMaxLoraRank;
        of_both.insert(of_both.end(), from, from + 16);
      }
    }
    return of_both;
  };
  const std::vector<float> want = shrunk(2);
  EXPECT_GT(want[0] * want[0], 0.0f);
  EXPECT_EQ(shrunk(kHigh), want);
}

// A chain of projections, each of what the one before gave; shrinks run beside the GEMMs.
class BehindTheGemm : public testing::TestWithParam<int> {};

TEST_P(BehindTheGemm, ItReadsWhatWasWrittenAheadOfTheGemm) {
  constexpr int kWidth = 4096, kLinks = 16;
  const int tokens = GetParam();
  LoraTargets targets{0, 1};
  targets.in = targets.features[0] = kWidth;
  LoraCase c(Type::kBF16, tokens, targets);
  AddMix(Mix::kDistinct, &c);
  c.Build();
  std::string error;
  const std::unique_ptr<Linear> linear = MakeLinear(&error);
  ASSERT_NE(linear, nullptr) << error;
  std::vector<float> w = RandomFloats(size_t{kWidth} * kWidth, 3);
  for (float& x : w) x *= 1.0f / 40;
  const DeviceArray<std::byte> w_device(Encode(Type::kBF16, w));
  const auto x = Encode(Type::kBF16, RandomFloats(size_t{1} * tokens * kWidth, 4));
  const auto run = [&](bool beside) {
    DeviceArray<std::byte> out[2] = {DeviceArray<std::byte>(x), DeviceArray<std::byte>(x)};
    for (int i = 0; i < kLinks; ++i) {
      LinearArgs args;
      args.x = out[i % 2].get();
      args.m = tokens;
      args.w = w_device.get();
      args.n = args.k = kWidth;
      args.out = out[(i + 1) % 2].get();
      args.shares = beside && linear->LetsIn(args);
      EXPECT_EQ(linear->Run(args, nullptr), "");
      LoraShrink(c.step(), targets, args.x, tokens, nullptr, args.shares);
      LoraExpand(c.step(), targets, kWidth, args.out, tokens, nullptr);
      if (!beside) {
        EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
      }
    }
    EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
    return Decode(Type::kBF16, out[0].Get());
  };
  const std::vector<float> want = run(false);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(run(true), want);
}

INSTANTIATE_TEST_SUITE_P(Tokens, BehindTheGemm, testing::Values(24, 76));

TEST(LoraCudaTest, NoTargetsOrTokensLaunchNothing) {
  LoraShrink({}, {}, nullptr, 4, nullptr);
  LoraExpand({}, {}, 8, nullptr, 4, nullptr);
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
}

}  // namespace
}  // namespace rootstock::kernels::cuda
