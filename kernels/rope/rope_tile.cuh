// Rotary embedding in bf16 for head_dim 64 and 128, with the LoRA of q, k and v on tensor cores: a
// warp takes a head of a tile's tokens. A lane holds columns 8g … of each piece of 64, so that for
// head_dim 128 both halves of a rotated pair are its own; for 64 the other half is 16 lanes away.
#pragma once

#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/expand_tile.cuh"
#include "kernels/rope/rope_plain.cuh"

namespace rootstock::kernels::cuda {

constexpr int kRopeWarps = 4;
template <bool kLora>
constexpr int kRopeBlocks = kLora ? 3 : 4;  // of an SM: no room for registers else

template <int kPieces>
__device__ __forceinline__ void NormHead(const float* weight, float eps, int column,
                                         float (&x)[kPieces][8]) {
  float squares = 0.0f;
#pragma unroll
  for (int p = 0; p < kPieces; ++p)
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += x[p][i] * x[p][i];
#pragma unroll
  for (int step = 4; step < 32; step *= 2) squares += __shfl_xor_sync(~0u, squares, step);
  const float inverse = rsqrtf(squares / (64.0f * kPieces) + eps);
#pragma unroll
  for (int p = 0; p < kPieces; ++p)
#pragma unroll
    for (int i = 0; i < 8; ++i) x[p][i] *= weight[p * 64 + column + i] * inverse;
}

// Two tokens of a lane at one head.
template <bool kLora, int kPieces>
struct RopeTokens {
  static constexpr int kHalf = 32 * kPieces;
  using Expand = ExpandTile<kPieces, 1>;
  const RopeArgs& args;
  int head;
  int column;  // the lane's first of a piece
  int token[2];
  __nv_bfloat16* out[2];
  float cos[2][8], sin[2][8];

  __device__ RopeTokens(const RopeArgs& a, int h) : args(a), head(h), column(8 * Expand::Group()) {}

  __device__ __forceinline__ __nv_bfloat16* At(int t) const {
    const HeadShape& heads = args.heads;
    const size_t row = static_cast<size_t>(t) * (heads.num_heads + 2 * heads.num_kv_heads) + head;
    return static_cast<__nv_bfloat16*>(args.qkv) + row * 64 * kPieces + column;
  }

  __device__ __forceinline__ bool IsV() const {
    return head >= args.heads.num_heads + args.heads.num_kv_heads;
  }

  __device__ __forceinline__ __nv_bfloat16* OutAt(int t) const {
    const int kv_head = head - args.heads.num_heads;
    if (kv_head < 0) return At(t);
    const int at = IsV() ? kv_head - args.heads.num_kv_heads : kv_head;
    return KvHead<__nv_bfloat16>(args, t, IsV(), at) + column;
  }

  __device__ __forceinline__ size_t AngleAt(int t) const {
    return static_cast<size_t>(args.positions[t]) * kHalf + column % kHalf;
  }

  // What no kernel of the step writes: where the outputs lie and the angles, which after the wait
  // would queue behind the keys that the next kernel fetches. With LoRA registers are short: the
  // angles only go to the first cache.
  __device__ __forceinline__ void Prepare(const LoraTile& tile, const Expand& expand, int octet) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      token[e] = expand.template Token<kLora>(tile, octet, e);
      const int t = max(token[e], 0);
      if (!kLora) out[e] = OutAt(t);
      if (IsV()) continue;
      if (kLora) {
        PrefetchL1(args.cos + AngleAt(t));
        PrefetchL1(args.sin + AngleAt(t));
      } else {
        Load8(args.cos + AngleAt(t), cos[e]);
        Load8(args.sin + AngleAt(t), sin[e]);
      }
    }
  }

  // After the wait. With LoRA the inputs go to the first cache while the sums are computed.
  __device__ __forceinline__ void Begin() const {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        if (kLora && token[e] >= 0) PrefetchL1(At(token[e]) + p * 64);
      }
    }
  }

  // All lanes must call it.
  __device__ __forceinline__ void Rotate(int e, float (&x)[kPieces][8]) {
    if (kLora) {
      Load8(args.cos + AngleAt(max(token[e], 0)), cos[e]);
      Load8(args.sin + AngleAt(max(token[e], 0)), sin[e]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float c = cos[e][i];
      const float s = sin[e][i];
      if constexpr (kPieces == 2) {
        const float a = x[0][i];
        const float b = x[1][i];
        x[0][i] = a * c - b * s;
        x[1][i] = b * c + a * s;
      } else {
        const float other = __shfl_xor_sync(~0u, x[0][i], 16);
        x[0][i] = x[0][i] * c + (column < kHalf ? -other : other) * s;
      }
    }
  }

  __device__ __forceinline__ void Store(const Expand& expand) {
    const float* norm = head < args.heads.num_heads ? args.q_norm : args.k_norm;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (!__any_sync(~0u, token[e] >= 0)) continue;
      float x[kPieces][8] = {};
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        if (token[e] >= 0) Load8(At(token[e]) + p * 64, x[p]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (kLora) x[p][i] += expand.Delta(p, i, e);
        }
      }
      if (!IsV()) {
        if (norm != nullptr) NormHead<kPieces>(norm, args.eps, column, x);
        Rotate(e, x);
      }
      if (token[e] < 0) continue;
      if (kLora) out[e] = OutAt(token[e]);
#pragma unroll
      for (int p = 0; p < kPieces; ++p) Store8(out[e] + p * 64, x[p]);
    }
  }
};

// grid: any. With LoRA the next kernel starts when those ahead of this one have ended: what it
// fetches first would be in the way of v and B.
template <bool kLora, int kPieces>
__global__ void __launch_bounds__(32 * kRopeWarps, kRopeBlocks<kLora>)
    RopeTileKernel(RopeArgs args, LoraStep step, LoraTargets targets, int splits) {
  using Expand = ExpandTile<kPieces, 1>;
  if (!kLora) GridLaunchDependents();
  const HeadShape& heads = args.heads;
  Expand expand;
  LoraTile tile;
  int tile_index = -1;
  int target = -1;
  PairWalk walk(NumTiles<kLora>(step, args.tokens), heads.num_heads + 2 * heads.num_kv_heads);
  for (; walk.more(); ++walk.at) {
    const int head = walk.piece();
    ExpandPiece pieces[kPieces];
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      pieces[p] = PieceAt(targets, (head * kPieces + p) * 64 + 8 * Expand::Group());
    }
    if (walk.tile() != tile_index || pieces[0].target != target) {
      tile_index = walk.tile();
      target = pieces[0].target;
      tile = TileAt<kLora>(step, args.tokens, tile_index);
      if (kLora) expand.SetTile(step, targets, tile, pieces);
    }
    if (kLora) {
      expand.LoadFirst(step, pieces);
      if (walk.at + 1 < walk.end) expand.PrefetchNext(step, 64 * kPieces);
    }
    RopeTokens<kLora, kPieces> tokens(args, head);
    tokens.Prepare(tile, expand, 0);
    GridDependencyWait();
    if (kLora) GridLaunchDependents();
    for (int octet = 0; octet * 8 < tile.count; ++octet) {
      if (kLora && tile.count > 8) expand.SetOctet(step, octet);
      if (kLora && octet > 0) expand.LoadFirst(step, pieces);
      if (octet > 0) tokens.Prepare(tile, expand, octet);
      tokens.Begin();
      if (kLora) expand.Sum(step, targets, splits);
      tokens.Store(expand);
    }
  }
  if (blockIdx.x == 0) GridDependencyWait();
}

}  // namespace rootstock::kernels::cuda
