// Rows of x are the lanes of a vector, each weight is broadcast: no sums across lanes. A tile of
// weights is widened into the first cache while the next one is fetched from memory.
#include "kernels/linear/linear_simd.h"
#include "kernels/simd/vec.h"

namespace rootstock::kernels::ROOTSTOCK_ISA {
namespace {

constexpr int kTile = 24;             // weight rows of a tile
constexpr int kChunk = 256;           // k of a tile
constexpr int kStride = kChunk + 16;  // floats; not a multiple of the cache's set stride
constexpr int kStep = 8;              // k between prefetches
constexpr int kMaxVecs = kMaxPackedRows / kLanes;

// Cache lines of the next tile, a few at a time, into the second cache: the first is full of this
// one.
struct Prefetch {
  const char* row = nullptr;
  size_t row_bytes = 0;
  int line = 0;  // of `row`
  int lines_a_row = 0;
  int rows = 0;  // from `row` on

  int lines() const { return rows * lines_a_row; }
  ROOTSTOCK_INLINE_MEMBER void Step(int count) {
    for (int i = 0; i < count && rows > 0; ++i) {
      __builtin_prefetch(row + line * 64, 0, 2);
      if (++line < lines_a_row) continue;
      line = 0;
      row += row_bytes;
      --rows;
    }
  }
};

// acc[n][v] += tile[n][k] · x[v][k] over kc steps, n < N, v < V.
template <int V, int N>
ROOTSTOCK_INLINE void Micro(const float* tile, const float* x, size_t x_stride, int kc, float* acc,
                            Prefetch& prefetch, int lines) {
  Vec sum[N][V];
#pragma GCC unroll 24
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[n][v] = Load(acc + (n * kMaxVecs + v) * kLanes);
  }
  for (int k = 0; k < kc;) {
    prefetch.Step(lines);
    const int stop = k + kStep < kc ? k + kStep : kc;
    for (; k < stop; ++k) {
      Vec xv[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) xv[v] = Load(x + v * x_stride + k * kLanes);
#pragma GCC unroll 24
      for (int n = 0; n < N; ++n) {
        const float w = tile[n * kStride + k];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sum[n][v] += w * xv[v];
      }
    }
  }
#pragma GCC unroll 24
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) Store(acc + (n * kMaxVecs + v) * kLanes, sum[n][v]);
  }
}

// One tile against all vectors of x.
void Multiply(const float* tile, const float* x, size_t x_stride, int vecs, int kc, float* acc,
              Prefetch& prefetch) {
  const int calls = ((vecs / 2) * 2 + vecs % 2) * kTile / kAccumulators;
  const int steps = calls * ((kc + kStep - 1) / kStep);
  const int lines = (prefetch.lines() + steps - 1) / steps;
  int v = 0;
  for (; v + 2 <= vecs; v += 2) {
    for (int n = 0; n < kTile; n += kAccumulators / 2) {
      Micro<2, kAccumulators / 2>(tile + n * kStride, x + v * x_stride, x_stride, kc,
                                  acc + (n * kMaxVecs + v) * kLanes, prefetch, lines);
    }
  }
  if (v < vecs) {
    for (int n = 0; n < kTile; n += kAccumulators) {
      Micro<1, kAccumulators>(tile + n * kStride, x + v * x_stride, x_stride, kc,
                              acc + (n * kMaxVecs + v) * kLanes, prefetch, lines);
    }
  }
}

template <typename W>
void Fill(const W* w, int ld, int rows, int kc, float* tile) {
  for (int n = 0; n < rows; ++n) {
    const W* in = w + static_cast<size_t>(n) * ld;
    float* out = tile + n * kStride;
    int k = 0;
    for (; k + kLanes <= kc; k += kLanes) Store(out + k, Load(in + k));
    for (; k < kc; ++k) out[k] = Widen(in[k]);
  }
}

void Emit(const LinearArgs& a, const float* acc, int first, int rows) {
  for (int m = 0; m < a.m; ++m) {
    float* out = a.out + static_cast<size_t>(m) * a.n + first;
    for (int n = 0; n < rows; ++n) {
      const float v = acc[n * kMaxVecs * kLanes + m];
      out[n] = a.bias == nullptr ? v : v + a.bias[first + n];
    }
  }
}

template <typename W>
void Packed(const LinearArgs& a, const float* packed, int begin, int end) {
  alignas(64) float tile[kTile * kStride];
  alignas(64) float acc[kTile * kMaxVecs * kLanes];
  const W* w = static_cast<const W*>(a.w);
  const size_t x_stride = static_cast<size_t>(a.k) * kLanes;
  const int vecs = (a.m + kLanes - 1) / kLanes;
  for (int n = begin; n < end; n += kTile) {
    const int rows = n + kTile < end ? kTile : end - n;
    for (float& sum : acc) sum = 0.0f;
    for (int k = 0; k < a.k; k += kChunk) {
      const int kc = k + kChunk < a.k ? kChunk : a.k - k;
      Fill(w + static_cast<size_t>(n) * a.k + k, a.k, rows, kc, tile);
      const bool last = k + kChunk >= a.k;
      const int next_n = last ? n + kTile : n;
      const int next_k = last ? 0 : k + kChunk;
      const int next_kc = next_k + kChunk < a.k ? kChunk : a.k - next_k;
      Prefetch prefetch;
      if (next_n < end) {
        prefetch.row =
            reinterpret_cast<const char*>(w + static_cast<size_t>(next_n) * a.k + next_k);
        prefetch.row_bytes = static_cast<size_t>(a.k) * sizeof(W);
        prefetch.lines_a_row = (next_kc * static_cast<int>(sizeof(W)) + 63) / 64;
        prefetch.rows = next_n + kTile < end ? kTile : end - next_n;
      }
      Multiply(tile, packed + static_cast<size_t>(k) * kLanes, x_stride, vecs, kc, acc, prefetch);
    }
    Emit(a, acc, n, rows);
  }
}

}  // namespace

int PackLanes() { return kLanes; }

void PackRange(const LinearArgs& args, int begin, int end, float* packed) {
  for (int first = 0; first < args.m; first += kLanes) {
    float* out = packed + static_cast<size_t>(first) * args.k;
    const int rows = first + kLanes < args.m ? kLanes : args.m - first;
    const float* in = args.x + static_cast<size_t>(first) * args.k;
    for (int k = begin; k < end; ++k) {
      for (int m = 0; m < kLanes; ++m) {
        out[static_cast<size_t>(k) * kLanes + m] =
            m < rows ? in[static_cast<size_t>(m) * args.k + k] : 0.0f;
      }
    }
  }
}

void LinearPackedRange(const LinearArgs& args, const float* packed, int begin, int end) {
  if (args.bf16) {
    Packed<uint16_t>(args, packed, begin, end);
  } else {
    Packed<float>(args, packed, begin, end);
  }
}

}  // namespace rootstock::kernels::ROOTSTOCK_ISA
