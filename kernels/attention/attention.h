// Attention over pages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rootstock::kernels {

struct AttentionRow {
  int begin = 0;  // first token in the batch
  int num_tokens = 0;
  int start_position = 0;           // of the first token
  const uint32_t* pages = nullptr;  // of positions 0 … start_position + num_tokens - 1
};

// out[t][h] = Σ_j softmax_j(q[t][h] · k[j][h / group] / sqrt(head_dim)) · v[j][h / group], over the
// positions j ≤ position of t; group = num_heads / num_kv_heads. Places past a row's last position
// are never read.
struct AttentionArgs {
  const float* qkv = nullptr;  // [tokens, (num_heads + 2 · num_kv_heads) · head_dim], q first
  const AttentionRow* rows = nullptr;
  int num_rows = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;  // at most 256
  const std::byte* slab = nullptr;
  size_t page_bytes = 0;
  size_t layer_offset = 0;  // bytes; there lies [K, V][page_tokens][num_kv_heads][head_dim]
  int page_tokens = 0;
  float* out = nullptr;  // [tokens, num_heads · head_dim]
};

constexpr int kMaxHeadDim = 256;

void PagedAttention(const AttentionArgs& args, int threads);

}  // namespace rootstock::kernels
