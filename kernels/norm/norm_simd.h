// Parts of the norm kernel that one thread runs.
#pragma once

#include "kernels/simd/isa.h"

namespace rootstock::kernels {

// a[i] += b[i].
ROOTSTOCK_VARIANTS(void AddRow(float* a, const float* b, int n))
// out = weight · x / sqrt(mean(x²) + eps); out may be x.
ROOTSTOCK_VARIANTS(void RmsNormRow(const float* x, const float* weight, float eps, int n,
                                   float* out))

}  // namespace rootstock::kernels
