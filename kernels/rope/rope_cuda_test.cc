#include "kernels/rope/rope_cuda.h"

#include <gtest/gtest.h>

#include <tuple>

#include "kernels/lora/lora_case.h"
#include "kernels/rope/rope.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kMaxPosition = 300;
constexpr int kPageTokens = 16;
constexpr int kInputs = 200;

LoraTargets Qkv(const HeadShape& heads) {
  LoraTargets targets{1, 3};
  targets.in = kInputs;
  const int count[] = {heads.num_heads, heads.num_kv_heads, heads.num_kv_heads};
  int column = 0;
  for (int i = 0; i < 3; ++i) {
    targets.module[i] = i;
    targets.column[i] = column;
    targets.features[i] = count[i] * heads.head_dim;
    column += targets.features[i];
  }
  return targets;
}

struct RopeData {
  HeadShape heads;
  std::vector<float> x, qkv, cos, sin, q_norm, k_norm;
  std::vector<int32_t> positions;
  std::vector<uint32_t> pages;
  int width() const { return (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim; }
  size_t page_floats() const {  // with another layer before and a hole after
    return size_t{2} * kPageTokens * heads.num_kv_heads * heads.head_dim * 2 + 64;
  }
  size_t num_pages() const { return pages.size() + 1; }
};

RopeData MakeRopeData(Type type, const HeadShape& heads, int tokens) {
  RopeData d{heads};
  d.x = RandomFloats(static_cast<size_t>(tokens) * kInputs, 1);
  d.qkv = RandomFloats(static_cast<size_t>(tokens) * d.width(), 2);
  RoundTo(type, d.x);
  RoundTo(type, d.qkv);
  d.cos = RandomFloats(static_cast<size_t>(kMaxPosition) * heads.head_dim / 2, 3);
  d.sin = RandomFloats(d.cos.size(), 4);
  d.q_norm = RandomFloats(heads.head_dim, 5);
  d.k_norm = RandomFloats(heads.head_dim, 6);
  for (int t = 0; t < tokens; ++t) {
    d.positions.push_back((t * 37) % kMaxPosition);
    d.pages.push_back(static_cast<uint32_t>(tokens - t));  // a page each, backwards
  }
  return d;
}

struct RopeResult {
  std::vector<float> q, kv;  // kv: the whole slab, zeros where nothing was written
};

RopeResult OnGpu(const LoraCase& c, bool lora, const RopeData& d, bool norm) {
  const Type type = c.type();
  DeviceArray<std::byte> x(Encode(type, d.x)), qkv(Encode(type, d.qkv));
  DeviceArray<float> cos(d.cos), sin(d.sin), q_norm(d.q_norm), k_norm(d.k_norm);
  DeviceArray<int32_t> positions(d.positions);
  DeviceArray<uint32_t> pages(d.pages);
  DeviceArray<std::byte> slab(
      std::vector<std::byte>(d.num_pages() * d.page_floats() * SizeOf(type)));
  RopeArgs args{type, qkv.get(), positions.get(), pages.get(), c.tokens(), d.heads};
  args.cos = cos.get();
  args.sin = sin.get();
  args.q_norm = norm ? q_norm.get() : nullptr;
  args.k_norm = norm ? k_norm.get() : nullptr;
  args.eps = 1e-5f;
  args.kv = {slab.get(), d.page_floats() * SizeOf(type), (d.page_floats() - 64) / 2 * SizeOf(type),
             kPageTokens};
  if (lora) LoraShrink(c.step(), c.targets(), x.get(), c.tokens(), nullptr);
  RopeWriteKv(args, c.step(), lora ? c.targets() : LoraTargets{}, nullptr);
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
  EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
  RopeResult out{{}, Decode(type, slab.Get())};
  const std::vector<float> all = Decode(type, qkv.Get());
  for (int t = 0; t < c.tokens(); ++t) {
    const auto row = all.begin() + static_cast<size_t>(t) * d.width();
    out.q.insert(out.q.end(), row, row + d.heads.num_heads * d.heads.head_dim);
  }
  return out;
}

RopeResult Reference(LoraCase& c, bool lora, const RopeData& d, bool norm) {
  std::vector<float> qkv = d.qkv;
  if (lora) c.AddReference(d.x, d.width(), qkv);
  RopeResult out{{}, std::vector<float>(d.num_pages() * d.page_floats())};
  kernels::RopeArgs args{qkv.data(),       d.positions.data(), d.pages.data(),
                         c.tokens(),       d.heads.num_heads,  d.heads.num_kv_heads,
                         d.heads.head_dim, d.cos.data(),       d.sin.data()};
  args.q_norm = norm ? d.q_norm.data() : nullptr;
  args.k_norm = norm ? d.k_norm.data() : nullptr;
  args.eps = 1e-5f;
  args.slab = reinterpret_cast<std::byte*>(out.kv.data());
  args.page_bytes = d.page_floats() * sizeof(float);
  args.layer_offset = (d.page_floats() - 64) / 2 * sizeof(float);
  args.page_tokens = kPageTokens;
  kernels::RopeWriteKv(args, 2);
  for (int t = 0; t < c.tokens(); ++t) {
    const auto row = qkv.begin() + static_cast<size_t>(t) * d.width();
    out.q.insert(out.q.end(), row, row + d.heads.num_heads * d.heads.head_dim);
  }
  return out;
}

struct Shape {
  int tokens;
  HeadShape heads;
};

class RopeCudaTest : public testing::TestWithParam<std::tuple<Type, Mix, Shape>> {};

TEST_P(RopeCudaTest, RotatesAndWritesAsTheCpu) {
  const auto& [type, mix, shape] = GetParam();
  LoraCase c(type, shape.tokens, Qkv(shape.heads));
  AddMix(mix, &c);
  c.Build();
  const RopeData d = MakeRopeData(type, shape.heads, shape.tokens);
  const int q_width = shape.heads.num_heads * shape.heads.head_dim;
  for (bool lora : {false, true}) {
    for (bool norm : {false, true}) {
      const RopeResult got = OnGpu(c, lora, d, norm);
      const RopeResult want = Reference(c, lora, d, norm);
      EXPECT_LT(RowError(got.q, want.q, q_width), Tolerance(type)) << lora << norm;
      EXPECT_LT(RowError(got.kv, want.kv, static_cast<int>(d.page_floats())), Tolerance(type))
          << lora << norm;
    }
  }
}

TEST_P(RopeCudaTest, ARowStandsAlone) {
  const auto& [type, mix, shape] = GetParam();
  if (shape.tokens > 64) return;
  LoraCase c(type, shape.tokens, Qkv(shape.heads));
  AddMix(mix, &c);
  c.Build();
  const RopeData d = MakeRopeData(type, shape.heads, shape.tokens);
  const RopeResult all = OnGpu(c, true, d, true);
  for (int t = 0; t < shape.tokens; t += 7) {
    const auto row = [t](const auto& of, size_t n) {
      return std::decay_t<decltype(of)>(of.begin() + t * n, of.begin() + (t + 1) * n);
    };
    RopeData one = d;
    one.x = row(d.x, kInputs);
    one.qkv = row(d.qkv, d.width());
    one.positions = {d.positions[t]};
    one.pages = {1};
    const RopeResult got = OnGpu(c.Alone(t), true, one, true);
    EXPECT_EQ(got.q, row(all.q, shape.heads.num_heads * shape.heads.head_dim)) << t;
    const auto page = [&](const std::vector<float>& kv, size_t p) {
      return std::vector<float>(kv.begin() + p * d.page_floats(),
                                kv.begin() + (p + 1) * d.page_floats());
    };
    EXPECT_EQ(page(got.kv, 1), page(all.kv, d.pages[t])) << t;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Any, RopeCudaTest,
    testing::Combine(testing::Values(Type::kF32, Type::kBF16),
                     testing::Values(Mix::kNone, Mix::kIdentical, Mix::kDistinct, Mix::kUniform,
                                     Mix::kZipf, Mix::kMixedRanks, Mix::kStacked),
                     testing::Values(Shape{64, {8, 2, 128}}, Shape{19, {9, 3, 64}},
                                     Shape{3, {2, 1, 8}}, Shape{11, {4, 4, 24}},
                                     Shape{5, {3, 1, 80}})));
INSTANTIATE_TEST_SUITE_P(
    Long, RopeCudaTest,
    testing::Combine(testing::Values(Type::kF32, Type::kBF16),
                     testing::Values(Mix::kIdentical, Mix::kMixedRanks, Mix::kStacked),
                     testing::Values(Shape{257, {4, 2, 128}}, Shape{300, {9, 3, 64}})));
// Heads that the warps of a block don't share evenly; none for some.
INSTANTIATE_TEST_SUITE_P(LongHeads, RopeCudaTest,
                         testing::Combine(testing::Values(Type::kBF16),
                                          testing::Values(Mix::kNone, Mix::kZipf, Mix::kStacked),
                                          testing::Values(Shape{259, {27, 1, 128}},
                                                          Shape{300, {1, 1, 128}})));

}  // namespace
}  // namespace rootstock::kernels::cuda
