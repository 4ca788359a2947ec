// acc[m] = Σ_r p[m][r] · v[r]: rows of v by pointers (B of an adapter, values of a cache).
// For SIMD files only.
#pragma once

#include "kernels/simd/vec.h"

namespace rootstock::kernels::ROOTSTOCK_ISA {

// Columns [0, V · kLanes) of M results; p[m] has `rows` floats; emit(m, column, Vec).
template <int M, int V, typename RowOf, typename Emit>
ROOTSTOCK_INLINE void OuterBlock(const float* const* p, int rows, RowOf row, Emit emit) {
  Vec acc[M][V] = {};
  for (int r = 0; r < rows; ++r) {
    const float* v = row(r);
    Vec vv[V];
#pragma GCC unroll 16
    for (int j = 0; j < V; ++j) vv[j] = Load(v + j * kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const float s = p[m][r];
#pragma GCC unroll 16
      for (int j = 0; j < V; ++j) acc[m][j] += s * vv[j];
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int j = 0; j < V; ++j) emit(m, j * kLanes, acc[m][j]);
  }
}

// Vectors of columns that M results take at a time.
constexpr int OuterVecs(int m) { return (kLanes == 16 ? 16 : 8) / m; }

// out[m][c] += scale[m] · Σ_r p[m][r] · row(r)[c] for c in [0, columns).
template <int M, typename RowOf>
ROOTSTOCK_INLINE void OuterAdd(const float* const* p, int rows, RowOf row, int columns,
                               const float* scale, float* const* out) {
  constexpr int kVecs = OuterVecs(M);
  int c = 0;
  const auto add = [&](int m, int j, Vec v) {
    float* o = out[m] + c + j;
    Store(o, Load(o) + scale[m] * v);
  };
  const auto at = [&](int r) { return row(r) + c; };
  for (; c + kVecs * kLanes <= columns; c += kVecs * kLanes) {
    OuterBlock<M, kVecs>(p, rows, at, add);
  }
  for (; c + kLanes <= columns; c += kLanes) OuterBlock<M, 1>(p, rows, at, add);
  for (; c < columns; ++c) {
    for (int m = 0; m < M; ++m) {
      float sum = 0.0f;
      for (int r = 0; r < rows; ++r) sum += p[m][r] * row(r)[c];
      out[m][c] += scale[m] * sum;
    }
  }
}

}  // namespace rootstock::kernels::ROOTSTOCK_ISA
