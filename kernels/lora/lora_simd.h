// Parts of the LoRA kernels that one thread runs.
#pragma once

#include "kernels/lora/lora.h"
#include "kernels/simd/isa.h"

namespace rootstock::kernels {

// Rows [begin, end) of A for all tokens of the part.
ROOTSTOCK_VARIANTS(void ShrinkRows(const std::byte* slab, const LoraPart& part, const float* x,
                                   int in, int begin, int end))
// Columns [begin, end) of the module's outputs for all tokens of the part.
ROOTSTOCK_VARIANTS(void ExpandColumns(const std::byte* slab, const LoraPart& part, float* out,
                                      int width, int begin, int end))

}  // namespace rootstock::kernels
