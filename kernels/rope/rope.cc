#include "kernels/rope/rope.h"

#include <cstring>

#include "kernels/rope/rope_simd.h"

namespace rootstock::kernels {
namespace {

using HeadFn = void (*)(float* x, const float* norm, float eps, const float* cos, const float* sin,
                        int head_dim);

void Token(const RopeArgs& a, int t, HeadFn head) {
  const int dim = a.head_dim;
  const size_t width = static_cast<size_t>(a.num_heads + 2 * a.num_kv_heads) * dim;
  float* q = a.qkv + t * width;
  float* k = q + static_cast<size_t>(a.num_heads) * dim;
  const size_t kv_width = static_cast<size_t>(a.num_kv_heads) * dim;
  const size_t angle = static_cast<size_t>(a.positions[t]) * (dim / 2);
  for (int h = 0; h < a.num_heads; ++h) {
    head(q + h * dim, a.q_norm, a.eps, a.cos + angle, a.sin + angle, dim);
  }
  for (int h = 0; h < a.num_kv_heads; ++h) {
    head(k + h * dim, a.k_norm, a.eps, a.cos + angle, a.sin + angle, dim);
  }
  float* page = reinterpret_cast<float*>(a.slab + a.pages[t] * a.page_bytes + a.layer_offset);
  const size_t slot = a.positions[t] % a.page_tokens;
  std::memcpy(page + slot * kv_width, k, kv_width * sizeof(float));
  std::memcpy(page + (a.page_tokens + slot) * kv_width, k + kv_width, kv_width * sizeof(float));
}

}  // namespace

void RopeWriteKv(const RopeArgs& args, int threads) {
  const auto head = ROOTSTOCK_PICK(RopeHead);
#pragma omp parallel for num_threads(threads) schedule(static) if (args.tokens > 1)
  for (int t = 0; t < args.tokens; ++t) Token(args, t, head);
}

}  // namespace rootstock::kernels
