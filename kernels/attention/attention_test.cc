#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/simd/test_data.h"

namespace rootstock::kernels {
namespace {

struct Shape {
  int heads, kv_heads, dim, page_tokens;
};

struct Sequence {
  int num_tokens, start;
};

// Everything a call needs, with places that must not be read filled with NaN.
class Case {
 public:
  Case(const Shape& shape, const std::vector<Sequence>& sequences) : shape_(shape) {
    layer_floats_ = 2 * shape.page_tokens * shape.kv_heads * shape.dim;
    int pages = 1, tokens = 0;
    for (const Sequence& s : sequences) {
      pages += (s.start + s.num_tokens + shape.page_tokens - 1) / shape.page_tokens;
      tokens += s.num_tokens;
    }
    slab_.assign(static_cast<size_t>(pages) * 2 * layer_floats_, NAN);
    std::vector<uint32_t> free(pages);
    std::iota(free.begin(), free.end(), 0u);
    std::shuffle(free.begin(), free.end(), std::mt19937(5));
    const int width = (shape.heads + 2 * shape.kv_heads) * shape.dim;
    qkv_ = RandomFloats(static_cast<size_t>(tokens) * width, 6, 3.0f);
    out_.assign(static_cast<size_t>(tokens) * shape.heads * shape.dim, NAN);
    tables_.resize(sequences.size());
    int begin = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const Sequence& s = sequences[i];
      for (int p = 0; p < s.start + s.num_tokens; p += shape.page_tokens) {
        tables_[i].push_back(free.back());
        free.pop_back();
      }
      for (int p = 0; p < s.start + s.num_tokens; ++p) Fill(i, p);
      rows_.push_back({begin, s.num_tokens, s.start, tables_[i].data()});
      begin += s.num_tokens;
    }
  }

  void Check(int threads) {
    AttentionArgs args;
    args.qkv = qkv_.data();
    args.rows = rows_.data();
    args.num_rows = static_cast<int>(rows_.size());
    args.num_heads = shape_.heads;
    args.num_kv_heads = shape_.kv_heads;
    args.head_dim = shape_.dim;
    args.slab = reinterpret_cast<const std::byte*>(slab_.data());
    args.page_bytes = 2 * layer_floats_ * sizeof(float);
    args.layer_offset = layer_floats_ * sizeof(float);
    args.page_tokens = shape_.page_tokens;
    args.out = out_.data();
    PagedAttention(args, threads);
    for (size_t i = 0; i < rows_.size(); ++i) {
      for (int t = 0; t < rows_[i].num_tokens; ++t) {
        for (int h = 0; h < shape_.heads; ++h) CheckHead(i, t, h);
      }
    }
  }

 private:
  float* Key(size_t row, int p) {
    float* page = slab_.data() + tables_[row][p / shape_.page_tokens] * 2 * layer_floats_;
    return page + layer_floats_ + p % shape_.page_tokens * shape_.kv_heads * shape_.dim;
  }
  float* Value(size_t row, int p) {
    return Key(row, p) + shape_.page_tokens * shape_.kv_heads * shape_.dim;
  }
  void Fill(size_t row, int p) {
    const size_t n = static_cast<size_t>(shape_.kv_heads) * shape_.dim;
    const std::vector<float> kv = RandomFloats(2 * n, static_cast<uint32_t>(row * 10000 + p + 9));
    std::memcpy(Key(row, p), kv.data(), n * sizeof(float));
    std::memcpy(Value(row, p), kv.data() + n, n * sizeof(float));
  }
  void CheckHead(size_t i, int t, int h) {
    const int token = rows_[i].begin + t, last = rows_[i].start_position + t;
    const float* q =
        &qkv_[token * (shape_.heads + 2 * shape_.kv_heads) * shape_.dim + h * shape_.dim];
    const int kv = h / (shape_.heads / shape_.kv_heads) * shape_.dim;
    std::vector<double> score(last + 1), want(shape_.dim, 0.0);
    double sum = 0;
    for (int p = 0; p <= last; ++p) {
      for (int d = 0; d < shape_.dim; ++d) score[p] += double{q[d]} * Key(i, p)[kv + d];
      score[p] = std::exp(score[p] / std::sqrt(shape_.dim));
      sum += score[p];
    }
    for (int p = 0; p <= last; ++p) {
      for (int d = 0; d < shape_.dim; ++d) want[d] += score[p] / sum * Value(i, p)[kv + d];
    }
    for (int d = 0; d < shape_.dim; ++d) {
      ASSERT_NEAR(out_[(token * shape_.heads + h) * shape_.dim + d], want[d], 2e-5)
          << "row " << i << " token " << t << " head " << h;
    }
  }

  Shape shape_;
  size_t layer_floats_ = 0;
  std::vector<float> slab_, qkv_, out_;
  std::vector<std::vector<uint32_t>> tables_;
  std::vector<AttentionRow> rows_;
};

TEST(AttentionTest, MixedRowsAndShapes) {
  for (const Shape& shape : {Shape{4, 4, 16, 16},
                             {9, 3, 64, 16},
                             {6, 1, 24, 4},
                             {40, 1, 8, 64},
                             {2, 2, 128, 5},
                             {3, 1, 256, 16}}) {
    Case test(shape, {{1, 0}, {1, 33}, {37, 0}, {5, 14}, {1, 16}, {18, 90}});
    test.Check(1);
    test.Check(3);
  }
}

TEST(AttentionTest, LargeScoresDoNotOverflow) {
  Case test({2, 1, 200, 16}, {{3, 70}});
  test.Check(1);
}

}  // namespace
}  // namespace rootstock::kernels
