// What every CUDA launcher takes. Plain C++: included by host code too.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace rootstock::kernels::cuda {

// Of activations, weights, KV and adapters. The residual stream and all sums are f32.
enum class Type { kF32, kBF16 };

constexpr size_t SizeOf(Type type) { return type == Type::kF32 ? 4 : 2; }

// A layer's KV: page p at slab + p · page_bytes + layer_offset holds
// [K, V][page_tokens][num_kv_heads][head_dim]. Page 0 is scratch for padded tokens.
struct PagedKv {
  std::byte* slab = nullptr;
  size_t page_bytes = 0;
  size_t layer_offset = 0;  // bytes
  int page_tokens = 0;
};

// The heads of one tp_rank.
struct HeadShape {
  int num_heads = 0;
  int num_kv_heads = 0;  // divides num_heads
  int head_dim = 0;
};

}  // namespace rootstock::kernels::cuda
