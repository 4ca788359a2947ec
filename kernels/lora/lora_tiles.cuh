// How the warps of a projection's consumer share its tokens and columns.
#pragma once

#include "kernels/lora/lora_device.cuh"

namespace rootstock::kernels::cuda {

// Where a lane's columns are: `column` of the target's own; target -1: no LoRA there.
struct ExpandPiece {
  int target = -1;
  int column = 0;
};

__device__ __forceinline__ ExpandPiece PieceAt(const LoraTargets& targets, int column) {
  const int target = TargetOf(targets, column);
  return {target, target < 0 ? 0 : column - Pick(targets.column, target)};
}

__device__ __forceinline__ ExpandPiece Moved(const ExpandPiece& piece, int columns) {
  return {piece.target, piece.column + columns};
}

// The tiles of a launch. Without LoRA a row is its token and a tile 8 of them.
template <bool kLora>
__device__ __forceinline__ LoraTile TileAt(const LoraStep& step, int num_tokens, int index) {
  if constexpr (kLora) {
    if (index >= step.max_tiles) return {};
    return LoadKept(step.tiles + index);
  } else {
    return {nullptr, index * 8, max(0, min(8, num_tokens - index * 8))};
  }
}

// Used tiles. All lanes must call it.
template <bool kLora>
__device__ __forceinline__ int NumTiles(const LoraStep& step, int num_tokens) {
  if constexpr (kLora) {
    int tiles = 0;
#pragma unroll 4
    for (int first = 0; first < step.max_tiles; first += 32) {
      const int index = first + threadIdx.x % 32;
      const int count = index < step.max_tiles ? LoadKept(&step.tiles[index].count) : 0;
      tiles += __popc(__ballot_sync(~0u, count > 0));
    }
    return tiles;
  } else {
    return (num_tokens + 7) / 8;
  }
}

// A warp's share of (tile, piece of columns) pairs: pieces run fastest so that a tile's tables are
// read once for many, and few pairs keep few blocks, which leaves the other SMs to the next kernel.
struct PairWalk {
  int at, end, pieces;

  __device__ PairWalk(int tiles, int num_pieces) : pieces(num_pieces) {
    const int warps = gridDim.x * (blockDim.x / 32);
    const int warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int pairs = tiles * num_pieces;
    const int share = (pairs + warps - 1) / warps;
    at = min(pairs, warp * share);
    end = min(pairs, at + share);
  }
  __device__ bool more() const { return at < end; }
  // Whether the pair `steps` on is the warp's too, and of the same tile.
  __device__ bool Ahead(int steps) const { return at + steps < end && piece() + steps < pieces; }
  __device__ int tile() const { return at / pieces; }
  __device__ int piece() const { return at % pieces; }
};

}  // namespace rootstock::kernels::cuda
