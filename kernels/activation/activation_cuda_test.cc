#include "kernels/activation/activation_cuda.h"

#include <gtest/gtest.h>

#include <tuple>

#include "kernels/activation/activation.h"
#include "kernels/lora/lora_case.h"

namespace rootstock::kernels::cuda {
namespace {

LoraTargets GateUp(int in, int n) {
  LoraTargets targets{1, 2};
  targets.in = in;
  for (int i = 0; i < 2; ++i) {
    targets.module[i] = 4 + i;
    targets.column[i] = i * n;
    targets.features[i] = n;
  }
  return targets;
}

// Of gate_up [tokens, 2 · n] with LoRA from x if `lora`.
std::vector<float> OnGpu(const LoraCase& c, bool lora, const std::vector<float>& x,
                         const std::vector<float>& gate_up) {
  const int n = c.targets().features[0];
  DeviceArray<std::byte> x_device(Encode(c.type(), x)), in(Encode(c.type(), gate_up));
  DeviceArray<std::byte> out(static_cast<size_t>(c.tokens()) * n * SizeOf(c.type()));
  if (lora) LoraShrink(c.step(), c.targets(), x_device.get(), c.tokens(), nullptr);
  SiluMul({c.type(), in.get(), n, c.tokens(), out.get()}, c.step(),
          lora ? c.targets() : LoraTargets{}, nullptr);
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
  EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
  EXPECT_EQ(Decode(c.type(), in.Get()), gate_up);
  return Decode(c.type(), out.Get());
}

struct Shape {
  int tokens, in, n;
};

class SiluCudaTest : public testing::TestWithParam<std::tuple<Type, Mix, Shape>> {};

TEST_P(SiluCudaTest, MatchesTheCpuAndARowStandsAlone) {
  const auto& [type, mix, shape] = GetParam();
  LoraCase c(type, shape.tokens, GateUp(shape.in, shape.n));
  AddMix(mix, &c);
  c.Build();
  std::vector<float> x = RandomFloats(static_cast<size_t>(shape.tokens) * shape.in, 1);
  std::vector<float> gate_up = RandomFloats(static_cast<size_t>(shape.tokens) * 2 * shape.n, 2, 3);
  RoundTo(type, x);
  RoundTo(type, gate_up);
  for (bool lora : {false, true}) {
    const std::vector<float> got = OnGpu(c, lora, x, gate_up);
    std::vector<float> sums = gate_up, want(got.size());
    if (lora) c.AddReference(x, 2 * shape.n, sums);
    kernels::SiluMul(sums.data(), shape.tokens, shape.n, want.data(), 2);
    EXPECT_LT(RowError(got, want, shape.n), Tolerance(type)) << lora;
    for (int t = 0; t < shape.tokens && shape.tokens <= 64; t += 7) {
      const auto row = [t](const std::vector<float>& of, int n) {
        return std::vector<float>(of.begin() + t * n, of.begin() + (t + 1) * n);
      };
      EXPECT_EQ(OnGpu(c.Alone(t), lora, row(x, shape.in), row(gate_up, 2 * shape.n)),
                row(got, shape.n))
          << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Any, SiluCudaTest,
                         testing::Combine(testing::Values(Type::kF32, Type::kBF16),
                                          testing::Values(Mix::kNone, Mix::kIdentical,
                                                          Mix::kDistinct, Mix::kUniform, Mix::kZipf,
                                                          Mix::kMixedRanks, Mix::kStacked),
                                          testing::Values(Shape{64, 512, 576}, Shape{19, 96, 72},
                                                          Shape{3, 24, 17}, Shape{33, 4104, 320})));
INSTANTIATE_TEST_SUITE_P(
    Long, SiluCudaTest,
    testing::Combine(testing::Values(Type::kF32, Type::kBF16),
                     testing::Values(Mix::kIdentical, Mix::kMixedRanks, Mix::kStacked),
                     testing::Values(Shape{257, 576, 136}, Shape{300, 512, 1024},
                                     Shape{421, 96, 192})));

}  // namespace
}  // namespace rootstock::kernels::cuda
