#include "kernels/linear/linear_simd.h"

#include "kernels/simd/dot_block.h"

namespace rootstock::kernels::ROOTSTOCK_ISA {
namespace {

template <int M, typename W>
void Strip(const LinearArgs& a, int begin, int end) {
  const float* x[M];
  for (int m = 0; m < M; ++m) x[m] = a.x + static_cast<size_t>(m) * a.k;
  const W* w = static_cast<const W*>(a.w) + static_cast<size_t>(begin) * a.k;
  float* out = a.out + begin;
  const float* bias = a.bias == nullptr ? nullptr : a.bias + begin;
  DotStrip<M, W>(
      x, end - begin, [&](int n) { return w + static_cast<size_t>(n) * a.k; }, a.k,
      [&](int m, int n, float v) {
        out[static_cast<size_t>(m) * a.n + n] = bias == nullptr ? v : v + bias[n];
      });
}

template <typename W>
void Dot(const LinearArgs& a, int begin, int end) {
  switch (a.m) {
    case 1:
      return Strip<1, W>(a, begin, end);
    case 2:
      return Strip<2, W>(a, begin, end);
    case 3:
      return Strip<3, W>(a, begin, end);
    case 4:
      return Strip<4, W>(a, begin, end);
    default:
      return;
  }
}

}  // namespace

void LinearDotRange(const LinearArgs& args, int begin, int end) {
  if (args.bf16) {
    Dot<uint16_t>(args, begin, end);
  } else {
    Dot<float>(args, begin, end);
  }
}

void WidenRange(const uint16_t* in, size_t n, float* out) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, Load(in + i));
  for (; i < n; ++i) out[i] = Widen(in[i]);
}

}  // namespace rootstock::kernels::ROOTSTOCK_ISA
