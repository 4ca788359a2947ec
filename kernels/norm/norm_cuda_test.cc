#include "kernels/norm/norm_cuda.h"

#include <gtest/gtest.h>

#include <tuple>

#include "kernels/lora/lora_case.h"
#include "kernels/norm/norm.h"

namespace rootstock::kernels::cuda {
namespace {

LoraTargets Target(int in, int n) {
  LoraTargets targets{1, 1};
  targets.in = in;
  targets.module[0] = 3;
  targets.features[0] = n;
  return targets;
}

struct NormData {
  std::vector<float> x, delta, residual, weight;
};

NormData MakeNormData(Type type, int tokens, int in, int n) {
  NormData d{RandomFloats(static_cast<size_t>(tokens) * in, 1),
             RandomFloats(static_cast<size_t>(tokens) * n, 2),
             RandomFloats(static_cast<size_t>(tokens) * n, 3), RandomFloats(n, 4)};
  RoundTo(type, d.x);
  RoundTo(type, d.delta);
  return d;
}

struct NormResult {
  std::vector<float> residual, out;
};

// Of tokens of `d`, with LoRA from d.x if `lora`; only `rows` are normalised unless it is empty.
NormResult OnGpu(const LoraCase& c, bool lora, const NormData& d,
                 const std::vector<int32_t>& rows) {
  const int n = c.targets().features[0];
  DeviceArray<std::byte> x(Encode(c.type(), d.x)), delta(Encode(c.type(), d.delta));
  DeviceArray<float> residual(d.residual), weight(d.weight);
  DeviceArray<int32_t> rows_device(rows);
  AddNormArgs args{c.type(), residual.get(), delta.get(), weight.get(), 1e-5f, n, c.tokens()};
  args.rows = rows.empty() ? nullptr : rows_device.get();
  args.num_rows = static_cast<int>(rows.size());
  const size_t outputs = rows.empty() ? c.tokens() : rows.size();
  DeviceArray<std::byte> out(outputs * n * SizeOf(c.type()));
  args.out = out.get();
  if (lora) LoraShrink(c.step(), c.targets(), x.get(), c.tokens(), nullptr);
  AddRmsNorm(args, c.step(), lora ? c.targets() : LoraTargets{}, nullptr);
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
  EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
  return {residual.Get(), Decode(c.type(), out.Get())};
}

NormResult Reference(LoraCase& c, bool lora, const NormData& d, const std::vector<int32_t>& rows) {
  const int n = c.targets().features[0];
  std::vector<float> delta = d.delta;
  if (lora) c.AddReference(d.x, n, delta);
  NormResult want{d.residual, std::vector<float>((rows.empty() ? c.tokens() : rows.size()) * n)};
  kernels::NormArgs args{want.residual.data(), delta.data(), d.weight.data(), 1e-5f, n, c.tokens()};
  args.rows = rows.empty() ? nullptr : rows.data();
  args.num_rows = static_cast<int>(rows.size());
  args.out = want.out.data();
  kernels::AddRmsNorm(args, 2);
  return want;
}

struct Shape {
  int tokens, in, n;
};

class NormCudaTest : public testing::TestWithParam<std::tuple<Type, Mix, Shape>> {};

TEST_P(NormCudaTest, AddsAndNormalisesAsTheCpu) {
  const auto& [type, mix, shape] = GetParam();
  LoraCase c(type, shape.tokens, Target(shape.in, shape.n));
  AddMix(mix, &c);
  c.Build();
  const NormData d = MakeNormData(type, shape.tokens, shape.in, shape.n);
  for (bool lora : {false, true}) {
    const NormResult got = OnGpu(c, lora, d, {});
    const NormResult want = Reference(c, lora, d, {});
    EXPECT_LT(RowError(got.residual, want.residual, shape.n), Tolerance(type)) << lora;
    EXPECT_LT(RowError(got.out, want.out, shape.n), Tolerance(type)) << lora;
    const std::vector<int32_t> rows = {shape.tokens - 1, 0, shape.tokens / 2, 0};
    EXPECT_LT(RowError(OnGpu(c, lora, d, rows).out, Reference(c, lora, d, rows).out, shape.n),
              Tolerance(type))
        << lora;
  }
}

TEST_P(NormCudaTest, ARowStandsAlone) {
  const auto& [type, mix, shape] = GetParam();
  if (shape.tokens > 64) return;
  LoraCase c(type, shape.tokens, Target(shape.in, shape.n));
  AddMix(mix, &c);
  c.Build();
  const NormData d = MakeNormData(type, shape.tokens, shape.in, shape.n);
  const NormResult all = OnGpu(c, true, d, {});
  for (int t = 0; t < shape.tokens; t += 7) {
    const auto row = [t](const std::vector<float>& of, int n) {
      return std::vector<float>(of.begin() + t * n, of.begin() + (t + 1) * n);
    };
    const NormData one{row(d.x, shape.in), row(d.delta, shape.n), row(d.residual, shape.n),
                       d.weight};
    const LoraCase alone = c.Alone(t);
    const NormResult got = OnGpu(alone, true, one, {});
    EXPECT_EQ(got.residual, row(all.residual, shape.n)) << t;
    EXPECT_EQ(got.out, row(all.out, shape.n)) << t;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Any, NormCudaTest,
    testing::Combine(testing::Values(Type::kF32, Type::kBF16),
                     testing::Values(Mix::kNone, Mix::kIdentical, Mix::kDistinct, Mix::kUniform,
                                     Mix::kZipf, Mix::kMixedRanks, Mix::kStacked),
                     testing::Values(Shape{64, 512, 576}, Shape{19, 96, 32}, Shape{3, 24, 17},
                                     Shape{33, 4104, 4096}, Shape{21, 64, 5120})));
// Where a cluster takes a row; v of more splits than lanes load together.
INSTANTIATE_TEST_SUITE_P(Few, NormCudaTest,
                         testing::Combine(testing::Values(Type::kBF16),
                                          testing::Values(Mix::kIdentical, Mix::kDistinct,
                                                          Mix::kMixedRanks, Mix::kStacked),
                                          testing::Values(Shape{1, 4104, 4096},
                                                          Shape{7, 18440, 5120}, Shape{3, 96, 8192},
                                                          Shape{8, 64, 192})));
// More tokens than rows of their own are for, fewer than the long kernel's.
INSTANTIATE_TEST_SUITE_P(
    Middle, NormCudaTest,
    testing::Combine(testing::Values(Type::kBF16),
                     testing::Values(Mix::kIdentical, Mix::kMixedRanks, Mix::kStacked),
                     testing::Values(Shape{131, 96, 192}, Shape{256, 512, 4096})));
INSTANTIATE_TEST_SUITE_P(Many, NormCudaTest,
                         testing::Combine(testing::Values(Type::kBF16),
                                          testing::Values(Mix::kDistinctRanks),
                                          testing::Values(Shape{33, 4104, 4096},
                                                          Shape{64, 200, 4096},
                                                          Shape{96, 200, 4096})));
INSTANTIATE_TEST_SUITE_P(
    Long, NormCudaTest,
    testing::Combine(testing::Values(Type::kF32, Type::kBF16),
                     testing::Values(Mix::kIdentical, Mix::kMixedRanks, Mix::kStacked),
                     testing::Values(Shape{257, 576, 136}, Shape{300, 512, 4096},
                                     Shape{421, 96, 5120}, Shape{257, 64, 8256})));

// Rows without an adapter have the same bits whether the launch knows of adapters or not.
TEST(NormCudaTest, ABaseRowsBitsDoNotDependOnTheAdaptersBeside) {
  for (const int n : {64, 576, 4096, 5120, 8192}) {
    LoraCase c(Type::kBF16, 19, Target(64, n));
    c.Build();
    const NormData d = MakeNormData(Type::kBF16, 19, 64, n);
    const NormResult base = OnGpu(c, false, d, {});
    const NormResult beside = OnGpu(c, true, d, {});
    EXPECT_EQ(base.residual, beside.residual) << n;
    EXPECT_EQ(base.out, beside.out) << n;
  }
}

TEST(NormCudaTest, WithoutDeltaTheResidualStays) {
  for (Type type : {Type::kF32, Type::kBF16}) {
    const std::vector<float> before = RandomFloats(3 * 64, 1), ones(64, 1.0f);
    DeviceArray<float> residual(before), weight(ones);
    DeviceArray<std::byte> out(3 * 64 * SizeOf(type));
    AddNormArgs args{type, residual.get(), nullptr, weight.get(), 1e-6f, 64, 3};
    args.out = out.get();
    AddRmsNorm(args, {}, {}, nullptr);
    EXPECT_EQ(residual.Get(), before);
    std::vector<float> same = before, want(3 * 64);
    kernels::NormArgs cpu{same.data(), nullptr, ones.data(), 1e-6f, 64, 3};
    cpu.out = want.data();
    kernels::AddRmsNorm(cpu, 1);
    EXPECT_LT(RowError(Decode(type, out.Get()), want, 64), Tolerance(type));
  }
}

TEST(EmbedCudaTest, TakesRowsOfThisRankAndZerosElsewhere) {
  for (Type type : {Type::kF32, Type::kBF16}) {
    for (int n : {7, 64, 4096}) {
      std::vector<float> table = RandomFloats(static_cast<size_t>(10) * n, 5);
      RoundTo(type, table);
      // The last two: what slots 2 and 0 sampled.
      const std::vector<int32_t> ids = {104, 99, 100, 109, 110, 0, -3, -1};
      const std::vector<int32_t> last = {101, 7, 105};
      DeviceArray<std::byte> table_device(Encode(type, table));
      DeviceArray<int32_t> ids_device(ids);
      DeviceArray<float> out(ids.size() * n);
      DeviceArray<int32_t> last_device(last);
      Embed(
          {type, table_device.get(), 100, 10, ids_device.get(), last_device.get(), 8, n, out.get()},
          nullptr);
      std::vector<float> want(ids.size() * n, 0.0f);
      for (size_t i = 0; i < ids.size(); ++i) {
        const int32_t id = ids[i] < 0 ? last[-1 - ids[i]] : ids[i];
        if (id < 100 || id >= 110) continue;
        std::copy_n(table.begin() + (id - 100) * n, n, want.begin() + i * n);
      }
      EXPECT_EQ(out.Get(), want);
    }
  }
}

}  // namespace
}  // namespace rootstock::kernels::cuda
