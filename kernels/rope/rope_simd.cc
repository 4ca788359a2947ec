#include "kernels/rope/rope_simd.h"

#include "kernels/simd/vec.h"

namespace rootstock::kernels::ROOTSTOCK_ISA {

void RopeHead(float* x, const float* norm, float eps, const float* cos, const float* sin,
              int head_dim) {
  if (norm != nullptr) {
    float sum = 0.0f;
    for (int i = 0; i < head_dim; ++i) sum += x[i] * x[i];
    const float inverse = 1.0f / __builtin_sqrtf(sum / static_cast<float>(head_dim) + eps);
    for (int i = 0; i < head_dim; ++i) x[i] = norm[i] * (x[i] * inverse);
  }
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

}  // namespace rootstock::kernels::ROOTSTOCK_ISA
