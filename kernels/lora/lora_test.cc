#include "kernels/lora/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/simd/test_data.h"

namespace rootstock::kernels {
namespace {

// Adapters with rows scattered over a slab, and the tokens that use them.
class Batch {
 public:
  Batch(int in, int features, int tokens) : in_(in), features_(features) {
    x_ = RandomFloats(static_cast<size_t>(tokens) * in, 1);
    before_ = RandomFloats(static_cast<size_t>(tokens) * Width(), 2);
  }

  void Add(int lora_rank, std::vector<int32_t> tokens) {
    Adapter a;
    a.rank = lora_rank;
    const uint32_t seed = static_cast<uint32_t>(100 * adapters_.size());
    a.a = RandomFloats(static_cast<size_t>(lora_rank) * in_, seed + 3);
    a.b = RandomFloats(static_cast<size_t>(lora_rank) * features_, seed + 4);
    a.tokens = std::move(tokens);
    a.scales = RandomFloats(a.tokens.size(), seed + 5, 2.0f);
    adapters_.push_back(std::move(a));
  }

  void Check(int threads) {
    Place();
    std::vector<LoraPart> parts;
    for (Adapter& a : adapters_) {
      a.v.assign(a.tokens.size() * a.rank, NAN);
      parts.push_back({a.a_rows.data(), a.b_rows.data(), a.rank, 0.5f, a.tokens.data(),
                       a.scales.data(), static_cast<int>(a.tokens.size()), kColumn, features_,
                       a.v.data()});
    }
    std::vector<float> out = before_;
    const std::byte* slab = reinterpret_cast<const std::byte*>(slab_.data());
    LoraShrink(slab, parts.data(), static_cast<int>(parts.size()), x_.data(), in_, threads);
    LoraExpand(slab, parts.data(), static_cast<int>(parts.size()), out.data(), Width(), threads);
    std::vector<double> want(before_.begin(), before_.end());
    for (const Adapter& a : adapters_) AddReference(a, want);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(out[i], want[i], 1e-4 * (1 + std::fabs(want[i]))) << i;
    }
  }

 private:
  static constexpr int kColumn = 5;
  struct Adapter {
    int rank = 0;
    std::vector<float> a, b, scales, v;
    std::vector<int32_t> tokens;
    std::vector<uint32_t> a_rows, b_rows;
  };
  int Width() const { return kColumn + features_ + 3; }

  uint32_t PlaceRow(const float* row, int n) {
    const size_t unit = kLoraRowUnit / sizeof(float);
    const size_t at = slab_.size() / unit + 1;  // a hole of NaN before each row
    slab_.resize((at + (n + unit - 1) / unit) * unit, NAN);
    std::memcpy(slab_.data() + at * unit, row, n * sizeof(float));
    return static_cast<uint32_t>(at);
  }
  void Place() {
    for (Adapter& a : adapters_) {
      a.a_rows.resize(a.rank);
      a.b_rows.resize(a.rank);
      for (int r = a.rank - 1; r >= 0; --r) {
        a.b_rows[r] = PlaceRow(&a.b[static_cast<size_t>(r) * features_], features_);
        a.a_rows[r] = PlaceRow(&a.a[static_cast<size_t>(r) * in_], in_);
      }
    }
  }
  void AddReference(const Adapter& a, std::vector<double>& want) const {
    for (size_t i = 0; i < a.tokens.size(); ++i) {
      for (int r = 0; r < a.rank; ++r) {
        double v = 0;
        for (int k = 0; k < in_; ++k) {
          v += double{a.a[r * in_ + k]} * x_[static_cast<size_t>(a.tokens[i]) * in_ + k];
        }
        for (int c = 0; c < features_; ++c) {
          want[static_cast<size_t>(a.tokens[i]) * Width() + kColumn + c] +=
              0.5 * a.scales[i] * v * a.b[r * features_ + c];
        }
      }
    }
  }

  int in_, features_;
  std::vector<float> x_, before_, slab_;
  std::vector<Adapter> adapters_;
};

std::vector<int32_t> Tokens(int begin, int end) {
  std::vector<int32_t> out;
  for (int t = begin; t < end; ++t) out.push_back(t);
  return out;
}

TEST(LoraTest, MixedRanksDecodeAndPromptsTogether) {
  for (int threads : {1, 2, 5}) {
    Batch batch(77, 131, 64);
    batch.Add(1, {0});
    batch.Add(256, {1, 3});
    batch.Add(5, {2, 4, 6});
    batch.Add(16, Tokens(8, 45));
    batch.Add(64, {50, 55, 60, 61, 63});
    batch.Check(threads);
  }
}

TEST(LoraTest, PopularityIdenticalDistinctUniformAndZipf) {
  for (const std::vector<int>& counts :
       {std::vector<int>{16}, std::vector<int>(16, 1), {4, 4, 4, 4}, {8, 4, 2, 1, 1}}) {
    Batch batch(64, 96, 16);
    int at = 0;
    for (int n : counts) {
      batch.Add(8 + n, Tokens(at, at + n));
      at += n;
    }
    batch.Check(2);
  }
}

TEST(LoraTest, NoPartsAndEmptyPartsChangeNothing) {
  Batch none(16, 16, 2);
  none.Check(2);
  Batch empty(16, 16, 2);
  empty.Add(4, {});
  empty.Check(2);
}

TEST(LoraTest, PartsOfOneTokenAddUp) {
  Batch batch(33, 17, 3);
  batch.Add(4, {0, 1});
  batch.Add(7, {1, 2});
  batch.Add(4, {1});
  batch.Check(3);
}

}  // namespace
}  // namespace rootstock::kernels
