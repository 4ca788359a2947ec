// The plain paged-attention kernel: any shape, f32 and bf16.
#pragma once

#include "kernels/attention/attention_cuda.h"

namespace rootstock::kernels::cuda {

enum class PlainRows { kAll, kSeveralQueries };

// Every row of the batch, pads' outputs are 0; or only rows with several queries, pads left alone.
// head_dim a multiple of 8, at most 256. Sums of a query are taken in the order of positions, in
// f32.
cudaError_t PlainAttention(const AttentionShapes& shapes, const AttentionBatch& batch,
                           const PagedKv& kv, const void* qkv, void* out, PlainRows which,
                           cudaStream_t stream);

}  // namespace rootstock::kernels::cuda
