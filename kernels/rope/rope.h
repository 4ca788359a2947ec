// Rotary embedding of q and k, and K and V into pages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rootstock::kernels {

// For each head x of q and k of a token at position p, half = head_dim / 2, i < half:
//   x ← norm · x / sqrt(mean(x²) + eps)                       (if there are norm weights)
//   x[i], x[half + i] ← x[i] · cos - x[half + i] · sin, x[half + i] · cos + x[i] · sin
// Then k and v go to the token's place: page · page_bytes + layer_offset holds
// [K, V][page_tokens][num_kv_heads][head_dim].
struct RopeArgs {
  float* qkv = nullptr;                // [tokens, (num_heads + 2 · num_kv_heads) · head_dim]
  const int32_t* positions = nullptr;  // [tokens]
  const uint32_t* pages = nullptr;     // [tokens]: the page of each token's position
  int tokens = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  const float* cos = nullptr;     // [max_position, head_dim / 2]
  const float* sin = nullptr;     // [max_position, head_dim / 2]
  const float* q_norm = nullptr;  // [head_dim]; null: none
  const float* k_norm = nullptr;  // [head_dim]; null: none
  float eps = 0.0f;
  std::byte* slab = nullptr;
  size_t page_bytes = 0;
  size_t layer_offset = 0;  // bytes
  int page_tokens = 0;
};

void RopeWriteKv(const RopeArgs& args, int threads);

}  // namespace rootstock::kernels
