// silu(gate) · up in bf16, with the LoRA of gate and up on tensor cores: a warp takes 64 columns of
// a tile's tokens.
#pragma once

#include "kernels/activation/activation_cuda.h"
#include "kernels/activation/activation_plain.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/expand_tile.cuh"

namespace rootstock::kernels::cuda {

constexpr int kSiluWarps = 4;

// What a lane does with its tokens.
template <bool kLora, int kOctets>
struct SiluTokens {
  const SiluMulArgs& args;
  const LoraTile& tile;
  const ExpandTile<2, kOctets>& expand;
  int column;
  int token[2];

  __device__ SiluTokens(const SiluMulArgs& a, const LoraTile& t, const ExpandTile<2, kOctets>& x,
                        int c)
      : args(a), tile(t), expand(x), column(c) {}

  __device__ __forceinline__ const __nv_bfloat16* In(int e) const {
    return static_cast<const __nv_bfloat16*>(args.gate_up) +
           static_cast<size_t>(token[e]) * 2 * args.n + column;
  }

  __device__ __forceinline__ void Begin(int o) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      token[e] = expand.template Token<kLora>(o, e, tile);
      if (!kLora || token[e] < 0) continue;
      PrefetchL1(In(e));
      PrefetchL1(In(e) + args.n);
    }
  }

  __device__ __forceinline__ void Store(int o) {
    auto* out = static_cast<__nv_bfloat16*>(args.out) + column;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (token[e] < 0) continue;
      float gate[8], up[8];
      Load8(In(e), gate);
      Load8(In(e) + args.n, up);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (kLora) {
          gate[i] += expand.Delta(o, 0, i, e);
          up[i] += expand.Delta(o, 1, i, e);
        }
        gate[i] = __fdividef(gate[i], 1.0f + __expf(-gate[i])) * up[i];
      }
      Store8(out + static_cast<size_t>(token[e]) * args.n, gate);
    }
  }
};

// grid [n / 64 / warps, workers].
template <bool kLora, int kOctets>
__global__ void __launch_bounds__(32 * kSiluWarps, kOctets == 1 ? 4 : 3)
    SiluMulTileKernel(SiluMulArgs args, LoraStep step, LoraTargets targets, int splits) {
  using Expand = ExpandTile<2, kOctets>;
  GridLaunchDependents();
  const TileWalk walk(args.tokens, 8 * kOctets);
  const int column = (blockIdx.x * kSiluWarps + threadIdx.x / 32) * 64 + 8 * Expand::Group();
  const ExpandPiece pieces[2] = {PieceAt(targets, column), PieceAt(targets, args.n + column)};
  for (int index = blockIdx.y; column < args.n; index += gridDim.y) {
    const LoraTile tile = walk.At<kLora>(step, index);
    if (tile.count < 0) break;
    Expand expand;
    if (kLora) {
      expand.Begin(step, targets, tile, pieces);
      Expand::Prefetch(step, targets, walk.At<kLora>(step, index + gridDim.y), pieces);
    }
    GridDependencyWait();
    SiluTokens<kLora, kOctets> tokens(args, tile, expand, column);
    if constexpr (kOctets == 1) tokens.Begin(0);
    if (kLora) expand.Finish(step, targets, splits);
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      if constexpr (kOctets > 1) tokens.Begin(o);
      tokens.Store(o);
    }
  }
  GridDependencyWait();
}

}  // namespace rootstock::kernels::cuda
