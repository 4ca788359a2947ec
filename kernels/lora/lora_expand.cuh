// Expand alone, in bf16 on tensor cores: a warp takes 64 columns of a tile's tokens.
#pragma once

#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/expand_tile.cuh"

namespace rootstock::kernels::cuda {

constexpr int kExpandWarps = 4;

// grid [width / 64 / warps, workers].
template <int kOctets>
__global__ void __launch_bounds__(32 * kExpandWarps, kOctets == 1 ? 5 : 3)
    ExpandTileKernel(LoraStep step, LoraTargets targets, int splits, int width, int num_tokens,
                     __nv_bfloat16* out) {
  using Expand = ExpandTile<1, kOctets>;
  GridLaunchDependents();
  const TileWalk walk(num_tokens, 8 * kOctets);
  const int column = (blockIdx.x * kExpandWarps + threadIdx.x / 32) * 64 + 8 * Expand::Group();
  const ExpandPiece pieces[1] = {PieceAt(targets, column)};
  for (int index = blockIdx.y; column < width; index += gridDim.y) {
    const LoraTile tile = walk.At<true>(step, index);
    if (tile.count < 0) break;
    if (tile.sites == nullptr || tile.count == 0) continue;
    Expand expand;
    expand.Begin(step, targets, tile, pieces);
    Expand::Prefetch(step, targets, walk.At<true>(step, index + gridDim.y), pieces);
    GridDependencyWait();
    expand.Finish(step, targets, splits);
#pragma unroll
    for (int o = 0; o < kOctets; ++o)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = expand.template Token<true>(o, e, tile);
        if (token < 0) continue;
        __nv_bfloat16* at = out + static_cast<size_t>(token) * width + column;
        float x[8];
        Load8(at, x);
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] += expand.Delta(o, 0, i, e);
        Store8(at, x);
      }
  }
  GridDependencyWait();
}

}  // namespace rootstock::kernels::cuda
