#include "kernels/lora/lora.h"

#include "kernels/lora/lora_simd.h"

namespace rootstock::kernels {
namespace {

// What a row of A costs: reading it, and a product a token.
int64_t RowCost(const LoraPart& part) { return part.num_tokens + 2; }

int64_t CeilDiv(int64_t n, int64_t d) { return n <= 0 ? 0 : (n + d - 1) / d; }

// Boundary of a thread's share of `features` in units of a vector.
int Column(int features, int thread, int threads) {
  const int64_t units = (features + 15) / 16;
  const int64_t at = units * thread / threads * 16;
  return at < features ? static_cast<int>(at) : features;
}

}  // namespace

void LoraShrink(const std::byte* slab, const LoraPart* parts, int num_parts, const float* x, int in,
                int threads) {
  const auto shrink = ROOTSTOCK_PICK(ShrinkRows);
  int64_t total = 0;
  for (int i = 0; i < num_parts; ++i) total += RowCost(parts[i]) * parts[i].lora_rank;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int t = 0; t < threads; ++t) {
    // A thread takes the rows whose cost starts in its share of the total.
    const int64_t low = total * t / threads;
    const int64_t high = total * (t + 1) / threads;
    int64_t at = 0;
    for (int i = 0; i < num_parts; ++i) {
      const LoraPart& part = parts[i];
      const int64_t cost = RowCost(part);
      const int64_t begin = CeilDiv(low - at, cost);
      int64_t end = CeilDiv(high - at, cost);
      if (end > part.lora_rank) end = part.lora_rank;
      if (begin < end) {
        shrink(slab, part, x, in, static_cast<int>(begin), static_cast<int>(end));
      }
      at += cost * part.lora_rank;
    }
  }
}

void LoraExpand(const std::byte* slab, const LoraPart* parts, int num_parts, float* out, int width,
                int threads) {
  const auto expand = ROOTSTOCK_PICK(ExpandColumns);
  // A thread owns columns, so parts that add into the same token keep their order.
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int t = 0; t < threads; ++t) {
    for (int i = 0; i < num_parts; ++i) {
      const int begin = Column(parts[i].features, t, threads);
      const int end = Column(parts[i].features, t + 1, threads);
      if (begin < end) expand(slab, parts[i], out, width, begin, end);
    }
  }
}

}  // namespace rootstock::kernels
