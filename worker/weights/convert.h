// Element conversions between file and storage types.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"

namespace rootstock {

float Bf16ToFloat(uint16_t bits);   // exact
float F16ToFloat(uint16_t bits);    // exact, subnormals included
uint16_t FloatToBf16(float value);  // to nearest even; NaN stays NaN

// n elements of `from` (aligned to nothing) become `to` (kF32 or kBF16).
void ConvertElements(const uint8_t* in, DType from, size_t n, void* out, DType to);

}  // namespace rootstock
