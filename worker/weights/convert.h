// Tensors from file types to storage types.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"

namespace rootstock {

// n elements of `from` (aligned to nothing) become `to` (kF32: exact, or kBF16: to nearest even).
void ConvertElements(const uint8_t* in, DType from, size_t n, void* out, DType to);

}  // namespace rootstock
