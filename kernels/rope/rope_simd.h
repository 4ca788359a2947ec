// Parts of the rope kernel that one thread runs.
#pragma once

#include "kernels/simd/isa.h"

namespace rootstock::kernels {

// One head: norm (null: none), then rotation by cos, sin [head_dim / 2].
ROOTSTOCK_VARIANTS(void RopeHead(float* x, const float* norm, float eps, const float* cos,
                                 const float* sin, int head_dim))

}  // namespace rootstock::kernels
