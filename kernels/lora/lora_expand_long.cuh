// Expand alone, of long steps.
#pragma once

#include "kernels/lora/expand_stream_walk.cuh"

namespace rootstock::kernels::cuda {

constexpr int kExpandStreamBlocks = 4;  // an SM

struct AddStream {
  __nv_bfloat16* out;
  int width;

  __device__ static int Column(int piece, int) { return piece * 64; }
  __device__ static void SetTokens(int, int) {}
  __device__ static void Apply(int, float (&)[1][8][4]) {}
  __device__ __forceinline__ __nv_bfloat16* Out(int token, int piece, int) const {
    return out + static_cast<size_t>(token) * width + piece * 64;
  }
};

// out [num_tokens, width].
__global__ void __launch_bounds__(kStreamThreads, kExpandStreamBlocks)
    ExpandStreamKernel(LoraStep step, LoraTargets targets, int width, int num_tokens,
                       __nv_bfloat16* out) {
  AddStream op{out, width};
  WalkStream<1, 1, 1>(step, targets, num_tokens, width / 64, out, width, op);
}

}  // namespace rootstock::kernels::cuda
