#include "kernels/activation/activation_simd.h"

#include "kernels/simd/vec.h"

namespace rootstock::kernels::ROOTSTOCK_ISA {

void SiluMulRow(const float* gate, const float* up, int n, float* out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec g = Load(gate + i);
    Store(out + i, g / (1.0f + Exp(-g)) * Load(up + i));
  }
  for (; i < n; ++i) out[i] = gate[i] / (1.0f + Exp(Splat(-gate[i]))[0]) * up[i];
}

}  // namespace rootstock::kernels::ROOTSTOCK_ISA
