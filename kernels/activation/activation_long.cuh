// silu(gate) · up in bf16 with the LoRA of gate and up, of long steps.
#pragma once

#include "kernels/activation/activation_cuda.h"
#include "kernels/lora/expand_long.cuh"

namespace rootstock::kernels::cuda {

struct SiluMulExpand {
  const SiluMulArgs& args;

  __device__ static int Column(int piece) { return piece * 64 + threadIdx.x % 32 / 4 * 8; }
  __device__ __forceinline__ void Pieces(const LoraTargets& targets, int piece,
                                         ExpandPiece (&pieces)[2]) const {
    pieces[0] = PieceAt(targets, Column(piece));
    pieces[1] = PieceAt(targets, args.n + Column(piece));
  }
  __device__ __forceinline__ const __nv_bfloat16* At(int token, int piece, int part) const {
    return static_cast<const __nv_bfloat16*>(args.gate_up) +
           static_cast<size_t>(2 * token + part) * args.n + Column(piece);
  }
  __device__ __forceinline__ void Finish(int token, bool live, int piece, const uint4 (&in)[2],
                                         const float (&added)[2][8]) const {
    float gate[8], up[8];
    Unpack8(in[0], gate);
    Unpack8(in[1], up);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      gate[c] += added[0][c];
      up[c] += added[1][c];
      gate[c] = SiluMulOne(gate[c], up[c]);
    }
    auto* out = static_cast<__nv_bfloat16*>(args.out) + static_cast<size_t>(token) * args.n;
    if (live) Store8(out + Column(piece), gate);
  }
};

__global__ void __launch_bounds__(kExpandLongThreads, 4)
    SiluMulLongKernel(SiluMulArgs args, LoraStep step, LoraTargets targets) {
  WalkLong<2, 2>(step, targets, args.tokens, args.n / 64, SiluMulExpand{args});
}

}  // namespace rootstock::kernels::cuda
