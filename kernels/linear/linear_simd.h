// Parts of the linear kernels that one thread runs.
#pragma once

#include "kernels/linear/linear.h"
#include "kernels/simd/isa.h"

namespace rootstock::kernels {

// Rows of x that one packed vector holds; k · lanes floats each.
ROOTSTOCK_VARIANTS(int PackLanes())
// packed[v][k][lane] = x[v · lanes + lane][k] for k in [begin, end); rows past m are 0.
ROOTSTOCK_VARIANTS(void PackRange(const LinearArgs& args, int begin, int end, float* packed))
// Outputs [begin, end) of every row: x packed (several rows), or as it is (few).
ROOTSTOCK_VARIANTS(void LinearPackedRange(const LinearArgs& args, const float* packed, int begin,
                                          int end))
ROOTSTOCK_VARIANTS(void LinearDotRange(const LinearArgs& args, int begin, int end))
ROOTSTOCK_VARIANTS(void WidenRange(const uint16_t* in, size_t n, float* out))

}  // namespace rootstock::kernels
