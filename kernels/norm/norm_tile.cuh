// Residual + RMSNorm in bf16 with the LoRA of o or down on tensor cores: a cluster takes a tile's
// tokens, each warp 64 columns, so that one row spreads over up to 8 SMs.
#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/expand_tile.cuh"
#include "kernels/norm/norm_cuda.h"

namespace rootstock::kernels::cuda {

constexpr int kNormMaxWarps = 8;
constexpr int kNormMaxCluster = 8;

// Shared memory of a block. Two of what other blocks write: a block may be one tile ahead.
struct NormShared {
  float of_warp[kNormMaxWarps][8];
  float of_block[2][kNormMaxCluster][8];
};

__device__ __forceinline__ void ClusterSync() {
#if __CUDA_ARCH__ >= 900
  cooperative_groups::this_cluster().sync();
#else
  __syncthreads();
#endif
}

// Sums of `mine` (slots 2q and 2q + 1) over every lane's columns of the rows, in a fixed order; the
// cluster's blocks send each other theirs.
__device__ __forceinline__ void RowSums(NormShared& shared, int turn, int cluster,
                                        float (&mine)[2]) {
  const int quad = threadIdx.x % 4;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) mine[e] += __shfl_xor_sync(~0u, mine[e], step);
    if (threadIdx.x % 32 < 4) shared.of_warp[threadIdx.x / 32][2 * quad + e] = mine[e];
  }
  __syncthreads();
  if (threadIdx.x < 8 * cluster) {
    const int slot = threadIdx.x % 8;
    float sum = 0.0f;
    for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) sum += shared.of_warp[w][slot];
    float* to = &shared.of_block[turn][blockIdx.x % cluster][slot];
#if __CUDA_ARCH__ >= 900
    to = cooperative_groups::this_cluster().map_shared_rank(to, threadIdx.x / 8);
#endif
    *to = sum;
  }
  ClusterSync();
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    mine[e] = 0.0f;
    for (int b = 0; b < cluster; ++b) mine[e] += shared.of_block[turn][b][2 * quad + e];
  }
}

// What a lane holds of its two tokens.
template <bool kLora, int kPieces>
struct NormTokens {
  using Expand = ExpandTile<kPieces, 1>;
  const AddNormArgs& args;
  const Expand& expand;
  int column;
  int token[2];
  float x[2][kPieces][8];

  __device__ NormTokens(const AddNormArgs& a, const Expand& t, int c)
      : args(a), expand(t), column(c) {}

  __device__ __forceinline__ size_t At(int e, int p) const {
    return static_cast<size_t>(token[e]) * args.n + column + 64 * p;
  }

  __device__ __forceinline__ const __nv_bfloat16* Delta(int e, int p) const {
    return static_cast<const __nv_bfloat16*>(args.delta) + At(e, p);
  }

  __device__ __forceinline__ void Begin(const LoraTile& tile, bool live) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      token[e] = expand.template Token<kLora>(0, e, tile);
      if (!live) token[e] = -1;
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        if (!kLora || token[e] < 0) continue;
        PrefetchL1(Delta(e, p));
        PrefetchL1(args.residual + At(e, p));
      }
    }
  }

  // residual += delta + LoRA; squares become the lane's share of its tokens' Σ residual².
  __device__ __forceinline__ void Add(float (&squares)[2]) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      squares[e] = 0.0f;
      if (token[e] < 0) continue;
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        float added[8] = {};
        if (args.delta != nullptr) Load8(Delta(e, p), added);
        Load8(args.residual + At(e, p), x[e][p]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (kLora) added[i] += expand.Delta(0, p, i, e);
          x[e][p][i] += added[i];
          squares[e] += x[e][p][i] * x[e][p][i];
        }
        if (args.delta != nullptr) Store8(args.residual + At(e, p), x[e][p]);
      }
    }
  }

  __device__ __forceinline__ void Store(const float (&squares)[2]) {
    auto* out = static_cast<__nv_bfloat16*>(args.out);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (token[e] < 0) continue;
      const float inverse = rsqrtf(squares[e] / static_cast<float>(args.n) + args.eps);
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        float weight[8];
        Load8(args.weight + column + 64 * p, weight);
#pragma unroll
        for (int i = 0; i < 8; ++i) x[e][p][i] = weight[i] * (x[e][p][i] * inverse);
        Store8(out + At(e, p), x[e][p]);
      }
    }
  }
};

// grid [cluster · workers], cluster · warps · kPieces · 64 ≥ n.
template <bool kLora, int kPieces>
__global__ void __launch_bounds__(32 * kNormMaxWarps, 2)
    AddNormTileKernel(AddNormArgs args, LoraStep step, LoraTargets targets, int splits,
                      int cluster) {
  using Expand = ExpandTile<kPieces, 1>;
  __shared__ NormShared shared;
  GridLaunchDependents();
  const TileWalk walk(args.tokens, 8);
  const int workers = gridDim.x / cluster;
  const int warp = blockIdx.x % cluster * (blockDim.x / 32) + threadIdx.x / 32;
  const int column = warp * kPieces * 64 + 8 * Expand::Group();
  const bool live = column < args.n;
  ExpandPiece pieces[kPieces];
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    pieces[p] = live ? PieceAt(targets, column + 64 * p) : ExpandPiece{};
    if (live) PrefetchL1(args.weight + column + 64 * p);
  }
  ClusterSync();  // the other blocks' shared memory is there
  int turn = 0;
  for (int index = blockIdx.x / cluster;; index += workers) {
    const LoraTile tile = walk.At<kLora>(step, index);
    if (tile.count < 0) break;  // for all of the cluster
    Expand expand;
    if (kLora) {
      expand.Begin(step, targets, tile, pieces);
      Expand::Prefetch(step, targets, walk.At<kLora>(step, index + workers), pieces);
    }
    GridDependencyWait();
    NormTokens<kLora, kPieces> tokens(args, expand, column);
    tokens.Begin(tile, live);
    if (kLora) expand.Finish(step, targets, splits);
    float squares[2];
    tokens.Add(squares);
    RowSums(shared, turn, cluster, squares);
    tokens.Store(squares);
    turn ^= 1;
  }
  GridDependencyWait();
}

}  // namespace rootstock::kernels::cuda
