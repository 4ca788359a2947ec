#include "kernels/lora/lora_simd.h"

#include "kernels/simd/dot_block.h"
#include "kernels/simd/outer_block.h"

namespace rootstock::kernels::ROOTSTOCK_ISA {
namespace {

ROOTSTOCK_INLINE const float* Row(const std::byte* slab, uint32_t offset) {
  return reinterpret_cast<const float*>(slab + offset * kLoraRowUnit);
}

template <int M>
void ShrinkTile(const std::byte* slab, const LoraPart& part, const float* x, int in, int first,
                int begin, int end) {
  const float* rows[M];
  for (int m = 0; m < M; ++m) rows[m] = x + static_cast<size_t>(part.tokens[first + m]) * in;
  float* v = part.v + static_cast<size_t>(first) * part.lora_rank + begin;
  DotStrip<M, float>(
      rows, end - begin, [&](int r) { return Row(slab, part.a[begin + r]); }, in,
      [&](int m, int r, float value) { v[m * part.lora_rank + r] = value; });
}

template <int M>
void ExpandTile(const std::byte* slab, const LoraPart& part, float* out, int width, int first,
                int begin, int end) {
  const float* v[M];
  float scale[M];
  float* rows[M];
  for (int m = 0; m < M; ++m) {
    v[m] = part.v + static_cast<size_t>(first + m) * part.lora_rank;
    scale[m] = part.scale * part.scales[first + m];
    rows[m] = out + static_cast<size_t>(part.tokens[first + m]) * width + part.column + begin;
  }
  OuterAdd<M>(
      v, part.lora_rank, [&](int r) { return Row(slab, part.b[r]) + begin; }, end - begin, scale,
      rows);
}

}  // namespace

void ShrinkRows(const std::byte* slab, const LoraPart& part, const float* x, int in, int begin,
                int end) {
  int i = 0;
  for (; i + 4 <= part.num_tokens; i += 4) ShrinkTile<4>(slab, part, x, in, i, begin, end);
  for (; i + 2 <= part.num_tokens; i += 2) ShrinkTile<2>(slab, part, x, in, i, begin, end);
  for (; i < part.num_tokens; ++i) ShrinkTile<1>(slab, part, x, in, i, begin, end);
}

void ExpandColumns(const std::byte* slab, const LoraPart& part, float* out, int width, int begin,
                   int end) {
  int i = 0;
  for (; i + 4 <= part.num_tokens; i += 4) ExpandTile<4>(slab, part, out, width, i, begin, end);
  for (; i + 2 <= part.num_tokens; i += 2) ExpandTile<2>(slab, part, out, width, i, begin, end);
  for (; i < part.num_tokens; ++i) ExpandTile<1>(slab, part, out, width, i, begin, end);
}

}  // namespace rootstock::kernels::ROOTSTOCK_ISA
