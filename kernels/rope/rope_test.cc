#include "kernels/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/simd/test_data.h"

namespace rootstock::kernels {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kDim = 10, kPageTokens = 4, kLayers = 2;
constexpr int kWidth = (kHeads + 2 * kKvHeads) * kDim;
constexpr size_t kLayerBytes = sizeof(float) * 2 * kPageTokens * kKvHeads * kDim;
constexpr size_t kPageBytes = 128 * ((kLayers * kLayerBytes + 127) / 128);

class RopeTest : public testing::TestWithParam<bool> {};

std::vector<double> Head(const float* x, const float* norm, int position) {
  std::vector<double> y(x, x + kDim);
  if (norm != nullptr) {
    double squares = 0;
    for (double v : y) squares += v * v;
    for (int i = 0; i < kDim; ++i) y[i] = norm[i] * y[i] / std::sqrt(squares / kDim + 1e-6);
  }
  std::vector<double> out(kDim);
  for (int i = 0; i < kDim / 2; ++i) {
    const double c = std::cos(position * 0.1 * (i + 1)), s = std::sin(position * 0.1 * (i + 1));
    out[i] = y[i] * c - y[kDim / 2 + i] * s;
    out[kDim / 2 + i] = y[kDim / 2 + i] * c + y[i] * s;
  }
  return out;
}

TEST_P(RopeTest, RotatesEveryHeadAndWritesKAndV) {
  const std::vector<int32_t> positions = {0, 5, 6, 7, 8};
  const std::vector<uint32_t> pages = {3, 1, 1, 1, 2};
  std::vector<float> cos, sin;
  for (int p = 0; p < 9; ++p) {
    for (int i = 0; i < kDim / 2; ++i) {
      cos.push_back(static_cast<float>(std::cos(p * 0.1 * (i + 1))));
      sin.push_back(static_cast<float>(std::sin(p * 0.1 * (i + 1))));
    }
  }
  const std::vector<float> q_norm = RandomFloats(kDim, 1), k_norm = RandomFloats(kDim, 2);
  const std::vector<float> before = RandomFloats(5 * kWidth, 3);
  std::vector<float> qkv = before, slab(4 * kPageBytes / sizeof(float), -1.0f);
  RopeArgs args;
  args.qkv = qkv.data();
  args.positions = positions.data();
  args.pages = pages.data();
  args.tokens = 5;
  args.num_heads = kHeads;
  args.num_kv_heads = kKvHeads;
  args.head_dim = kDim;
  args.cos = cos.data();
  args.sin = sin.data();
  args.q_norm = GetParam() ? q_norm.data() : nullptr;
  args.k_norm = GetParam() ? k_norm.data() : nullptr;
  args.eps = 1e-6f;
  args.slab = reinterpret_cast<std::byte*>(slab.data());
  args.page_bytes = kPageBytes;
  args.layer_offset = kLayerBytes;
  args.page_tokens = kPageTokens;
  RopeWriteKv(args, 2);
  size_t written = 0;
  for (int t = 0; t < 5; ++t) {
    for (int h = 0; h < kHeads + kKvHeads; ++h) {
      const size_t at = t * kWidth + h * kDim;
      const float* norm = h < kHeads ? args.q_norm : args.k_norm;
      const std::vector<double> want = Head(&before[at], norm, positions[t]);
      for (int i = 0; i < kDim; ++i) ASSERT_NEAR(qkv[at + i], want[i], 1e-5) << h;
    }
    const size_t page_at = (pages[t] * kPageBytes + kLayerBytes) / sizeof(float);
    const float* page = slab.data() + page_at;
    const size_t slot = (positions[t] % kPageTokens) * kKvHeads * kDim;
    for (int i = 0; i < kKvHeads * kDim; ++i) {
      const float* k = &qkv[t * kWidth + kHeads * kDim];
      EXPECT_EQ(page[slot + i], k[i]);
      EXPECT_EQ(page[slot + kPageTokens * kKvHeads * kDim + i],
                before[t * kWidth + (kHeads + kKvHeads) * kDim + i]);
      written += 2;
    }
  }
  size_t changed = 0;
  for (float x : slab) changed += x != -1.0f;
  EXPECT_EQ(changed, written);  // nothing beside the tokens' places
}

INSTANTIATE_TEST_SUITE_P(QkNorm, RopeTest, testing::Bool());

}  // namespace
}  // namespace rootstock::kernels
