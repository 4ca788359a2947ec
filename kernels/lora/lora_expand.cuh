// Expand alone, in bf16 on tensor cores: a warp takes 64 columns of a tile's tokens.
#pragma once

#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/expand_tile.cuh"

namespace rootstock::kernels::cuda {

constexpr int kExpandWarps = 4;

// out [num_tokens, width]; grid: any.
__global__ void __launch_bounds__(32 * kExpandWarps, 5)
    ExpandTileKernel(LoraStep step, LoraTargets targets, int splits, int width, int num_tokens,
                     __nv_bfloat16* out) {
  using Expand = ExpandTile<1, 1>;
  GridLaunchDependents();
  PairWalk walk(NumTiles<true>(step, num_tokens), width / 64);
  for (; walk.more(); ++walk.at) {
    const int column = walk.piece() * 64 + 8 * Expand::Group();
    const ExpandPiece pieces[1] = {PieceAt(targets, column)};
    const LoraTile tile = TileAt<true>(step, num_tokens, walk.tile());
    if (tile.sites == nullptr) continue;
    Expand expand;
    expand.SetTile(step, targets, tile, pieces);
    expand.LoadFirst(step, pieces);
    GridDependencyWait();
    for (int octet = 0; octet * 8 < tile.count; ++octet) {
      if (octet > 0) {
        expand.SetOctet(step, octet);
        expand.LoadFirst(step, pieces);
      }
      expand.Sum(step, targets, splits);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = expand.template Token<true>(tile, octet, e);
        if (token < 0) continue;
        __nv_bfloat16* at = out + static_cast<size_t>(token) * width + column;
        float x[8];
        Load8(at, x);
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] += expand.Delta(0, i, e);
        Store8(at, x);
      }
    }
  }
  if (blockIdx.x == 0) GridDependencyWait();
}

}  // namespace rootstock::kernels::cuda
