// Expand alone, of long steps.
#pragma once

#include "kernels/lora/expand_long.cuh"

namespace rootstock::kernels::cuda {

struct AddExpand {
  __nv_bfloat16* out;
  int width;

  __device__ static int Column(int piece) { return piece * 64 + threadIdx.x % 32 / 4 * 8; }
  __device__ __forceinline__ void Pieces(const LoraTargets& targets, int piece,
                                         ExpandPiece (&pieces)[1]) const {
    pieces[0] = PieceAt(targets, Column(piece));
  }
  __device__ __forceinline__ __nv_bfloat16* At(int token, int piece, int) const {
    return out + static_cast<size_t>(token) * width + Column(piece);
  }
  __device__ __forceinline__ void Finish(int token, bool live, int piece, const uint4 (&in)[1],
                                         const float (&added)[1][8]) const {
    float x[8];
    Unpack8(in[0], x);
#pragma unroll
    for (int c = 0; c < 8; ++c) x[c] += added[0][c];
    if (live) Store8(At(token, piece, 0), x);
  }
};

// out [num_tokens, width].
__global__ void __launch_bounds__(kExpandLongThreads, 4)
    ExpandLongKernel(LoraStep step, LoraTargets targets, int width, int num_tokens,
                     __nv_bfloat16* out) {
  WalkLong<1, 1>(step, targets, num_tokens, width / 64, AddExpand{out, width});
}

}  // namespace rootstock::kernels::cuda
