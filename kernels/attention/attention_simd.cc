#include "kernels/attention/attention_simd.h"

#include "kernels/simd/dot_block.h"
#include "kernels/simd/outer_block.h"

namespace rootstock::kernels::ROOTSTOCK_ISA {
namespace {

constexpr int kKeys = 16;  // keys taken together; a page is cut into such blocks

// Running softmax of a block of queries.
struct State {
  const float* q[kQueryBlock];
  float* out[kQueryBlock];          // unnormalised sums until the end
  int last[kQueryBlock];            // last position that the query sees
  float top[kQueryBlock];           // largest score so far
  float sum[kQueryBlock];           // Σ exp(score - top)
  float score[kQueryBlock][kKeys];  // scores, then weights
};

template <int M, typename RowOf>
ROOTSTOCK_INLINE void ScoreStrip(State& s, int first, int keys, RowOf key, int dim, float scale) {
  DotStrip<M, float>(s.q + first, keys, key, dim,
                     [&](int m, int n, float v) { s.score[first + m][n] = v * scale; });
}

template <typename RowOf>
void Scores(State& s, int count, int keys, RowOf key, int dim, float scale) {
  int m = 0;
  for (; m + 4 <= count; m += 4) ScoreStrip<4>(s, m, keys, key, dim, scale);
  switch (count - m) {
    case 3:
      return ScoreStrip<3>(s, m, keys, key, dim, scale);
    case 2:
      return ScoreStrip<2>(s, m, keys, key, dim, scale);
    case 1:
      return ScoreStrip<1>(s, m, keys, key, dim, scale);
    default:
      return;
  }
}

template <typename RowOf>
void AddValues(State& s, int count, int keys, RowOf value, int dim) {
  const float ones[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  int m = 0;
  for (; m + 4 <= count; m += 4) {
    const float* p[4] = {s.score[m], s.score[m + 1], s.score[m + 2], s.score[m + 3]};
    OuterAdd<4>(p, keys, value, dim, ones, s.out + m);
  }
  for (; m < count; ++m) {
    const float* p[1] = {s.score[m]};
    OuterAdd<1>(p, keys, value, dim, ones, s.out + m);
  }
}

// Scores of keys at positions position… become weights; sums so far are scaled to the new top.
void Soften(State& s, int m, int position, int keys, int dim) {
  float* score = s.score[m];
  for (int n = 0; n < kKeys; ++n) {
    if (n >= keys || position + n > s.last[m]) score[n] = -__builtin_inff();
  }
  float top = s.top[m];
  for (int n = 0; n < kKeys; ++n) top = score[n] > top ? score[n] : top;
  if (top > s.top[m]) {
    const float shrink = Exp(Splat(s.top[m] - top))[0];
    s.sum[m] *= shrink;
    for (int d = 0; d < dim; ++d) s.out[m][d] *= shrink;
    s.top[m] = top;
  }
  Vec sum = {};
  for (int n = 0; n < kKeys; n += kLanes) {
    const Vec p = Exp(Load(score + n) - top);
    Store(score + n, p);
    sum += p;
  }
  s.sum[m] += Sum(sum);
}

void Start(const AttentionArgs& a, const AttentionRow& row, int kv_head, int first, int count,
           State& s) {
  const int group = a.num_heads / a.num_kv_heads;
  const size_t in_width = static_cast<size_t>(a.num_heads + 2 * a.num_kv_heads) * a.head_dim;
  const size_t out_width = static_cast<size_t>(a.num_heads) * a.head_dim;
  for (int m = 0; m < count; ++m) {
    const int token = (first + m) / group;
    const size_t head = static_cast<size_t>(kv_head * group + (first + m) % group) * a.head_dim;
    s.q[m] = a.qkv + (row.begin + token) * in_width + head;
    s.out[m] = a.out + (row.begin + token) * out_width + head;
    s.last[m] = row.start_position + token;
    s.top[m] = -3.0e38f;
    s.sum[m] = 0.0f;
    for (int d = 0; d < a.head_dim; ++d) s.out[m][d] = 0.0f;
  }
}

}  // namespace

void AttendBlock(const AttentionArgs& a, const AttentionRow& row, int kv_head, int first,
                 int count) {
  State s;
  Start(a, row, kv_head, first, count, s);
  const int dim = a.head_dim;
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(dim));
  const size_t stride = static_cast<size_t>(a.num_kv_heads) * dim;
  const int end = s.last[count - 1] + 1;
  for (int position = 0; position < end;) {
    const int slot = position % a.page_tokens;
    const int room = a.page_tokens - slot < kKeys ? a.page_tokens - slot : kKeys;
    const int keys = end - position < room ? end - position : room;
    const float* page = reinterpret_cast<const float*>(
        a.slab + row.pages[position / a.page_tokens] * a.page_bytes + a.layer_offset);
    const float* k = page + slot * stride + static_cast<size_t>(kv_head) * dim;
    const float* v = k + a.page_tokens * stride;
    Scores(s, count, keys, [&](int n) { return k + n * stride; }, dim, scale);
    for (int m = 0; m < count; ++m) Soften(s, m, position, keys, dim);
    AddValues(s, count, keys, [&](int n) { return v + n * stride; }, dim);
    position += keys;
  }
  for (int m = 0; m < count; ++m) {
    const float inverse = 1.0f / s.sum[m];
    for (int d = 0; d < dim; ++d) s.out[m][d] *= inverse;
  }
}

}  // namespace rootstock::kernels::ROOTSTOCK_ISA
