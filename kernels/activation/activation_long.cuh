// silu(gate) · up in bf16 with the LoRA of gate and up, of long steps.
#pragma once

#include "kernels/activation/activation_cuda.h"
#include "kernels/lora/expand_stream_walk.cuh"

namespace rootstock::kernels::cuda {

struct SiluMulStream {
  const SiluMulArgs& args;

  __device__ __forceinline__ int Column(int piece, int part) const {
    return part * args.n + piece * 64;
  }
  __device__ static void SetTokens(int, int) {}
  __device__ static void Apply(int, float (&x)[2][8][4]) {
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) x[0][n][c] = SiluMulOne(x[0][n][c], x[1][n][c]);
  }
  __device__ __forceinline__ __nv_bfloat16* Out(int token, int piece, int) const {
    return static_cast<__nv_bfloat16*>(args.out) + static_cast<size_t>(token) * args.n + piece * 64;
  }
};

__global__ void __launch_bounds__(kStreamThreads, kStreamBlocks)
    SiluMulStreamKernel(SiluMulArgs args, LoraStep step, LoraTargets targets) {
  SiluMulStream op{args};
  WalkStream<2, 2, 1>(step, targets, args.tokens, args.n / 64,
                      static_cast<const __nv_bfloat16*>(args.gate_up), 2 * args.n, op);
}

}  // namespace rootstock::kernels::cuda
