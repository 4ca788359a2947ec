// Parts of the activation kernels that one thread runs.
#pragma once

#include <cstdint>

#include "kernels/simd/isa.h"

namespace rootstock::kernels {

ROOTSTOCK_VARIANTS(void SiluMulRow(const float* gate, const float* up, int n, float* out))

}  // namespace rootstock::kernels
