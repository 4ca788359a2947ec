// out[m][n] = x[m] · w[n]: rows given by pointers, so that weights may be a matrix, rows scattered
// over pages, or keys. For SIMD files only.
#pragma once

#include "kernels/simd/vec.h"

namespace rootstock::kernels::ROOTSTOCK_ISA {

// x: M rows of k floats; w: N rows of k elements W (float, or uint16_t for bf16);
// emit(m, n, value). Each sum's order depends on k alone, so blocking never changes a bit.
template <int M, int N, typename W, typename Emit>
ROOTSTOCK_INLINE void DotBlock(const float* const* x, const W* const* w, int k, Emit emit) {
  Vec acc[N][M] = {};
  int i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    Vec wv[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) wv[n] = Load(w[n] + i);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const Vec xv = Load(x[m] + i);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) acc[n][m] += wv[n] * xv;
    }
  }
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      float sum = Sum(acc[n][m]);
      for (int j = i; j < k; ++j) sum += x[m][j] * Widen(w[n][j]);
      emit(m, n, sum);
    }
  }
}

// Rows of w that share one pass over M rows of x.
constexpr int DotRows(int m) {
  const int rows = kAccumulators / m;
  return rows > 8 ? 8 : rows < 1 ? 1 : rows;
}
constexpr int kDotMaxM = kLanes == 16 ? 8 : 4;

// All n rows of w against M rows of x.
template <int M, typename W, typename RowOf, typename Emit>
ROOTSTOCK_INLINE void DotStrip(const float* const* x, int n, RowOf row, int k, Emit emit) {
  constexpr int kRows = DotRows(M);
  int i = 0;
  for (; i + kRows <= n; i += kRows) {
    const W* w[kRows];
    for (int j = 0; j < kRows; ++j) w[j] = row(i + j);
    DotBlock<M, kRows, W>(x, w, k, [&](int m, int j, float v) { emit(m, i + j, v); });
  }
  for (; i < n; ++i) {
    const W* w[1] = {row(i)};
    DotBlock<M, 1, W>(x, w, k, [&](int m, int, float v) { emit(m, i, v); });
  }
}

}  // namespace rootstock::kernels::ROOTSTOCK_ISA
