// How the weight-streaming matrix product is cut and lies in shared memory.
#pragma once

#include <cuda_runtime.h>

#include "kernels/linear/stream_cuda.h"
#include "kernels/linear/stream_store.cuh"

namespace rootstock::kernels::cuda {

constexpr int kSms = 132;  // the tiles' count aims at; any GPU computes the same tiles

constexpr int CeilDiv(int a, int b) { return (a + b - 1) / b; }
constexpr int RoundUp(int a, int unit) { return CeilDiv(a, unit) * unit; }
// N of the kernel for m tokens, and MB of that for tiles of `rows`.
constexpr int TokenRows(int m) {
  return m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : 96;
}
constexpr int MmaBlocks(int rows) { return rows <= 64 ? 1 : rows <= 128 ? 2 : 4; }
constexpr int BoxesBytes(int rows, int boxes) { return boxes * rows * kBoxRowBytes; }

// Of args with `gated`: whether StreamForm::kGatedRows is theirs. Up to 32 tiles of a step's tokens
// four warps of a block expand before the weights have come.
inline bool ExpandsRows(const LinearArgs& args) {
  constexpr int kMostTiles = 32;
  return args.gated && args.shrink != nullptr && args.shrink->step.max_tiles > kMostTiles;
}
// Of its blocks: sets of four warps which shrink and expand, from thread 256 on.
constexpr int kGatedSets = 2;
constexpr int kGatedRowsThreads = 256 + kGatedSets * 128;

struct StreamLaunch {
  StreamParams params;
  int grid = 0;
  int shared_bytes = 0;
  bool whole = false;  // a block has one tile, which is its alone: StreamForm::kWhole
};

// Whether a block's tile, the only one it has, takes all of k.
inline bool IsWhole(StreamTile tile, int n) {
  return tile.split == 1 && CeilDiv(n, tile.rows) <= kSms;
}

StreamLaunch PlanStream(const LinearArgs& args, StreamTile tile, StreamRing ring, int token_rows);

}  // namespace rootstock::kernels::cuda
