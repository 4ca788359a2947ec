// Rotary embedding of q and k, and K and V into pages, on the GPU.
#pragma once

#include "kernels/lora/lora_cuda.h"

namespace rootstock::kernels::cuda {

// rope.h's formula, after qkv += LoRA (if targets.count) in f32. q is rotated in place.
struct RopeArgs {
  Type type = Type::kBF16;             // of qkv and KV
  void* qkv = nullptr;                 // [tokens, (num_heads + 2 · num_kv_heads) · head_dim]
  const int32_t* positions = nullptr;  // [tokens]
  const uint32_t* pages = nullptr;     // [tokens]: the page of each token's position
  int tokens = 0;
  HeadShape heads;
  const float* cos = nullptr;     // [max_position, head_dim / 2]
  const float* sin = nullptr;     // [max_position, head_dim / 2]
  const float* q_norm = nullptr;  // [head_dim]; null: none
  const float* k_norm = nullptr;  // [head_dim]; null: none
  float eps = 0.0f;
  PagedKv kv;
};
void RopeWriteKv(const RopeArgs& args, const LoraStep& lora, const LoraTargets& targets,
                 cudaStream_t stream);

}  // namespace rootstock::kernels::cuda
