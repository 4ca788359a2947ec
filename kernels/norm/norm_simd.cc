#include "kernels/norm/norm_simd.h"

#include "kernels/simd/vec.h"

namespace rootstock::kernels::ROOTSTOCK_ISA {

void AddRow(float* a, const float* b, int n) {
  for (int i = 0; i < n; ++i) a[i] += b[i];
}

void RmsNormRow(const float* x, const float* weight, float eps, int n, float* out) {
  Vec squares = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec v = Load(x + i);
    squares += v * v;
  }
  float sum = Sum(squares);
  for (; i < n; ++i) sum += x[i] * x[i];
  const float inverse = 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
  for (int j = 0; j < n; ++j) out[j] = weight[j] * (x[j] * inverse);
}

}  // namespace rootstock::kernels::ROOTSTOCK_ISA
