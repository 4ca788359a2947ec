// Rotary embedding of any head_dim and type: one block a token and head.
#pragma once

#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/lora_device.cuh"
#include "kernels/rope/rope_cuda.h"

namespace rootstock::kernels::cuda {

// Where head `head` of K (or V) of a token lies in its page.
template <typename T>
__device__ __forceinline__ T* KvHead(const RopeArgs& args, int token, bool is_v, int head) {
  const int position = args.positions[token];
  std::byte* page = args.kv.slab + args.pages[token] * args.kv.page_bytes + args.kv.layer_offset;
  const size_t row = position % args.kv.page_tokens + (is_v ? args.kv.page_tokens : 0);
  return reinterpret_cast<T*>(page) + (row * args.heads.num_kv_heads + head) * args.heads.head_dim;
}

// grid [tokens, num_heads + 2 · num_kv_heads], one warp; head_dim floats of shared memory.
template <typename T, bool kLora>
__global__ void __launch_bounds__(32)
    RopePlainKernel(RopeArgs args, LoraStep step, LoraTargets targets, int splits) {
  extern __shared__ float x[];
  GridDependencyWait();
  GridLaunchDependents();
  const int token = TokenAt<kLora>(step, blockIdx.x);
  const HeadShape& heads = args.heads;
  const int head = blockIdx.y;
  const int dim = heads.head_dim;
  T* in = static_cast<T*>(args.qkv) +
          (static_cast<size_t>(token) * (heads.num_heads + 2 * heads.num_kv_heads) + head) * dim;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < dim; i += 32) {
    float value = ToFloat(in[i]);
    if (kLora) value += LoraDelta<T>(step, targets, splits, blockIdx.x, head * dim + i);
    x[i] = value;
    squares += value * value;
  }
  const int kv_head = head - heads.num_heads;
  const bool is_v = kv_head >= heads.num_kv_heads;
  T* out = kv_head < 0
               ? in
               : KvHead<T>(args, token, is_v, is_v ? kv_head - heads.num_kv_heads : kv_head);
  if (is_v) {
    for (int i = threadIdx.x; i < dim; i += 32) out[i] = FromFloat<T>(x[i]);
    return;
  }
  const float* norm = kv_head < 0 ? args.q_norm : args.k_norm;
  float inverse = 1.0f;
  if (norm != nullptr) inverse = rsqrtf(WarpSum(squares) / static_cast<float>(dim) + args.eps);
  __syncwarp();
  const int half = dim / 2;
  const size_t angle = static_cast<size_t>(args.positions[token]) * half;
  for (int i = threadIdx.x; i < half; i += 32) {
    float a = x[i];
    float b = x[half + i];
    if (norm != nullptr) {
      a = norm[i] * (a * inverse);
      b = norm[half + i] * (b * inverse);
    }
    const float c = args.cos[angle + i];
    const float s = args.sin[angle + i];
    out[i] = FromFloat<T>(a * c - b * s);
    out[half + i] = FromFloat<T>(b * c + a * s);
  }
}

}  // namespace rootstock::kernels::cuda
