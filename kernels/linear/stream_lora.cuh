// LoRA beside the weight-streaming matrix product: what four further warps of its blocks do.
#pragma once

#include "kernels/linear/stream_store.cuh"
#include "kernels/lora/expand_tile.cuh"
#include "kernels/lora/lora_shrink_items.cuh"

namespace rootstock::kernels::cuda {

struct StreamShrink {
  LoraStep step;
  LoraTargets targets, expand;
  const __nv_bfloat16* x = nullptr;
  int splits = 0;
  // Of the gated form: blocks whose part of v is there, and blocks that wait for it no more. Both
  // are 0 between launches.
  unsigned* arrived = nullptr;
  unsigned* left = nullptr;
};

// The block's v has been written. One thread calls it, after a barrier.
__device__ __forceinline__ void ShrinkArriveOne(const StreamShrink& lora) {
  GridDependencyWait();  // the launch before may still count
  __threadfence();
  atomicAdd(lora.arrived, 1);
}
// Likewise; all of the four warps call it.
__device__ __forceinline__ void ShrinkArrive(const StreamShrink& lora) {
  SyncDecodeWarps();
  if (threadIdx.x % kDecodeThreads == 0) ShrinkArriveOne(lora);
}

// Returns when all blocks' v is there. They run at the same time (StreamLinear::Gates).
__device__ __forceinline__ void ShrinkWait(const StreamShrink& lora) {
  if (threadIdx.x % 32 == 0) {
    unsigned arrived;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                   : "=r"(arrived)
                   : "l"(lora.arrived)
                   : "memory");
    } while (arrived < gridDim.x);
  }
  __syncwarp();
}

// The block waits no more; the last one sets the counts back. One thread calls it, after a barrier.
__device__ __forceinline__ void ShrinkLeaveOne(const StreamShrink& lora) {
  if (atomicAdd(lora.left, 1) + 1 < gridDim.x) return;
  *lora.arrived = 0;
  *lora.left = 0;
}
// Likewise; all of the four warps call it.
__device__ __forceinline__ void ShrinkLeave(const StreamShrink& lora) {
  SyncDecodeWarps();
  if (threadIdx.x % kDecodeThreads == 0) ShrinkLeaveOne(lora);
}

// Piece `index` of 64 columns of gate and of up of the tile's tokens. wait: returns when v is
// there.
template <typename Wait>
__device__ __forceinline__ void ExpandGatedPiece(const StreamParams& p, const StreamShrink& lora,
                                                 const LoraTile& tile, int index, Wait wait,
                                                 float* delta) {
  using Expand = ExpandTile<2, 2>;
  const int half = p.rows / 2;
  const int at = index * 64 + 8 * Expand::Group();
  const int column = min(static_cast<int>(blockIdx.x) * half + min(at, half - 8), p.up_row - 8);
  const ExpandPiece piece[2] = {PieceAt(lora.expand, column),
                                PieceAt(lora.expand, p.up_row + column)};
  Expand expand;
  expand.SetTile(lora.step, lora.expand, tile, piece);
  expand.LoadFirst(lora.step, piece);
  wait();
  expand.Sum(lora.step, lora.expand, lora.splits);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int token = expand.template Token<true>(tile, 0, e);
    if (token < 0 || token >= p.m || at >= half) continue;
    float* to = delta + token * 2 * DeltaPitch(half) + at;
#pragma unroll
    for (int of = 0; of < 2; ++of) {
      float sums[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] = expand.Delta(of, i, e);
      Store8(to + of * DeltaPitch(half), sums);
    }
  }
}

// delta [m][2][DeltaPitch]: what LoRA adds to the block's tile of gate and up, with the bits of
// silu · mul's kernel.
__device__ __forceinline__ void ExpandGated(const StreamParams& p, const StreamShrink& lora,
                                            float* delta) {
  const int pieces = (p.rows / 2 + 63) / 64;
  const int pairs = NumTiles<true>(lora.step, 0) * pieces;
  bool ready = false;
  const auto wait = [&] {
    if (!ready) ShrinkWait(lora);
    ready = true;
  };
#pragma unroll 1
  for (int pair = DecodeWarp(); pair < pairs; pair += kDecodeWarps) {
    ExpandGatedPiece(p, lora, TileAt<true>(lora.step, 0, pair / pieces), pair % pieces, wait,
                     delta);
  }
  wait();
}

}  // namespace rootstock::kernels::cuda
