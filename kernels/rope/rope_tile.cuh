// Rotary embedding in bf16 for head_dim 64 and 128, with the LoRA of q, k and v on tensor cores: a
// warp takes a head of a tile's tokens. A lane holds columns 8g … of each piece of 64, so that for
// head_dim 128 both halves of a rotated pair are its own; for 64 the other half is 16 lanes away.
#pragma once

#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/expand_tile.cuh"
#include "kernels/rope/rope_plain.cuh"

namespace rootstock::kernels::cuda {

constexpr int kRopeWarps = 4;

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

// What a lane does with its tokens at one head.
template <bool kLora, int kPieces, int kOctets>
struct RopeTokens {
  static constexpr int kHalf = 32 * kPieces;
  using Expand = ExpandTile<kPieces, kOctets>;
  const RopeArgs& args;
  const LoraTile& tile;
  const Expand& expand;
  int head;
  int column;  // the lane's first of a piece
  int token[2];

  __device__ RopeTokens(const RopeArgs& a, const LoraTile& t, const Expand& x, int h)
      : args(a), tile(t), expand(x), head(h), column(8 * Expand::Group()) {}

  __device__ __forceinline__ __nv_bfloat16* At(int t) const {
    const HeadShape& heads = args.heads;
    const size_t row = static_cast<size_t>(t) * (heads.num_heads + 2 * heads.num_kv_heads) + head;
    return static_cast<__nv_bfloat16*>(args.qkv) + row * 64 * kPieces + column;
  }

  __device__ __forceinline__ void Begin(int o) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      token[e] = expand.template Token<kLora>(o, e, tile);
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        if (kLora && token[e] >= 0) PrefetchL1(At(token[e]) + p * 64);
      }
    }
  }

  // All lanes must call it.
  __device__ __forceinline__ void Rotate(int position, float (&x)[kPieces][8]) const {
    const size_t angle = static_cast<size_t>(position) * kHalf + column % kHalf;
    float c[8], s[8];
    Load8(args.cos + angle, c);
    Load8(args.sin + angle, s);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (kPieces == 2) {
        const float a = x[0][i];
        const float b = x[1][i];
        x[0][i] = a * c[i] - b * s[i];
        x[1][i] = b * c[i] + a * s[i];
      } else {
        const float other = __shfl_xor_sync(~0u, x[0][i], 16);
        x[0][i] = x[0][i] * c[i] + (column < kHalf ? -other : other) * s[i];
      }
    }
  }

  __device__ __forceinline__ void Store(int o) const {
    const int kv_head = head - args.heads.num_heads;
    const bool is_v = kv_head >= args.heads.num_kv_heads;
    const float* norm = kv_head < 0 ? args.q_norm : args.k_norm;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float x[kPieces][8] = {};
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        if (token[e] >= 0) Load8(At(token[e]) + p * 64, x[p]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (kLora) x[p][i] += expand.Delta(o, p, i, e);
        }
      }
      if (!is_v) {
        if (norm != nullptr) NormHead<kPieces>(norm, args.eps, column, x);
        Rotate(token[e] < 0 ? 0 : args.positions[token[e]], x);
      }
      if (token[e] < 0) continue;
      __nv_bfloat16* out = At(token[e]);
      if (kv_head >= 0) {
        const int at = is_v ? kv_head - args.heads.num_kv_heads : kv_head;
        out = KvHead<__nv_bfloat16>(args, token[e], is_v, at) + column;
      }
#pragma unroll
      for (int p = 0; p < kPieces; ++p) Store8(out + p * 64, x[p]);
    }
  }
};

// grid [heads / warps, workers].
template <bool kLora, int kPieces, int kOctets>
__global__ void __launch_bounds__(32 * kRopeWarps, kOctets == 1 ? 4 : 3)
    RopeTileKernel(RopeArgs args, LoraStep step, LoraTargets targets, int splits) {
  using Expand = ExpandTile<kPieces, kOctets>;
  GridLaunchDependents();
  const HeadShape& heads = args.heads;
  const TileWalk walk(args.tokens, 8 * kOctets);
  const int head = blockIdx.x * kRopeWarps + threadIdx.x / 32;
  ExpandPiece pieces[kPieces];
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    pieces[p] = PieceAt(targets, (head * kPieces + p) * 64 + 8 * Expand::Group());
  }
  for (int index = blockIdx.y; head < heads.num_heads + 2 * heads.num_kv_heads;
       index += gridDim.y) {
    const LoraTile tile = walk.At<kLora>(step, index);
    if (tile.count < 0) break;
    Expand expand;
    if (kLora) {
      expand.Begin(step, targets, tile, pieces);
      Expand::Prefetch(step, targets, walk.At<kLora>(step, index + gridDim.y), pieces);
    }
    GridDependencyWait();
    RopeTokens<kLora, kPieces, kOctets> tokens(args, tile, expand, head);
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
