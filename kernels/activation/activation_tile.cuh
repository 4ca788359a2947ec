// silu(gate) · up in bf16, with the LoRA of gate and up on tensor cores: a warp takes 64 columns of
// a tile's tokens.
#pragma once

#include "kernels/activation/activation_cuda.h"
#include "kernels/activation/activation_plain.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/expand_tile.cuh"

namespace rootstock::kernels::cuda {

constexpr int kSiluWarps = 4;
constexpr int kSiluBlocks = 3;  // of an SM: no room for registers else

// Two tokens of a lane at its 8 columns.
template <bool kLora>
struct SiluTokens {
  using Expand = ExpandTile<2, 2>;
  const SiluMulArgs& args;
  int column;
  int token[2];

  __device__ SiluTokens(const SiluMulArgs& a, int c) : args(a), column(c) {}

  __device__ __forceinline__ const __nv_bfloat16* In(int e) const {
    return static_cast<const __nv_bfloat16*>(args.gate_up) +
           static_cast<size_t>(token[e]) * 2 * args.n + column;
  }

  // With LoRA registers are short: the inputs only go to the first cache.
  __device__ __forceinline__ void Begin(const LoraTile& tile, const Expand& expand, int octet) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      token[e] = expand.template Token<kLora>(tile, octet, e);
      if (!kLora || token[e] < 0) continue;
      PrefetchL1(In(e));
      PrefetchL1(In(e) + args.n);
    }
  }

  __device__ __forceinline__ void Store(const Expand& expand) const {
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
          gate[i] += expand.Delta(0, i, e);
          up[i] += expand.Delta(1, i, e);
        }
        gate[i] = SiluMulOne(gate[i], up[i]);
      }
      Store8(out + static_cast<size_t>(token[e]) * args.n, gate);
    }
  }
};

// grid: any.
template <bool kLora>
__global__ void __launch_bounds__(32 * kSiluWarps, kSiluBlocks)
    SiluMulTileKernel(SiluMulArgs args, LoraStep step, LoraTargets targets, int splits) {
  using Expand = ExpandTile<2, 2>;
  GridLaunchDependents();
  Expand expand;
  LoraTile tile;
  int tile_index = -1;
  PairWalk walk(NumTiles<kLora>(step, args.tokens), args.n / 64);
  for (; walk.more(); ++walk.at) {
    const int column = walk.piece() * 64 + 8 * Expand::Group();
    const ExpandPiece pieces[2] = {PieceAt(targets, column), PieceAt(targets, args.n + column)};
    const bool fresh = walk.tile() != tile_index;
    if (fresh) {
      tile_index = walk.tile();
      tile = TileAt<kLora>(step, args.tokens, tile_index);
      if (kLora) expand.SetTile(step, targets, tile, pieces);
    }
    // B of the pieces behind: the next one's is loaded while this one's outputs are stored.
    const bool more = walk.Ahead(1);
    if (kLora) {
      if (fresh || tile.count > 8) expand.LoadFirst(step, pieces);
      if (fresh && more) expand.PrefetchNext(step, 64);
      if (walk.Ahead(2)) expand.PrefetchNext(step, 128);
    }
    GridDependencyWait();
    SiluTokens<kLora> tokens(args, column);
    for (int octet = 0; octet * 8 < tile.count; ++octet) {
      if (kLora && tile.count > 8) expand.SetOctet(step, octet);
      if (kLora && octet > 0) expand.LoadFirst(step, pieces);
      tokens.Begin(tile, expand, octet);
      if (kLora) expand.Sum(step, targets, splits);
      if (kLora && tile.count <= 8 && more) {
        expand.LoadFirst(step, {Moved(pieces[0], 64), Moved(pieces[1], 64)});
      }
      tokens.Store(expand);
    }
  }
  if (blockIdx.x == 0) GridDependencyWait();
}

}  // namespace rootstock::kernels::cuda
