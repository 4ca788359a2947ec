// Host side of a LoRA step: the order in which consumers walk its tokens.
#pragma once

#include "kernels/lora/lora_cuda.h"

namespace rootstock::kernels::cuda {

// Fills rows [num_tokens + members], row_of [num_tokens] and tiles [max_tiles] (the rest unused) of
// a LoraStep from its groups. `groups`, `tokens` [members] and `scales` [members] are host copies;
// max_tiles is at least MaxLoraTiles(num_tokens, num_groups).
void FillLoraRows(const LoraGroupEntry* groups, int num_groups, const int32_t* tokens,
                  const float* scales, int num_tokens, int max_tiles, LoraRow* rows,
                  int32_t* row_of, LoraTile* tiles);

}  // namespace rootstock::kernels::cuda
