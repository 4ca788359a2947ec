// Residual + RMSNorm in bf16 with the LoRA of o or down on tensor cores: a cluster takes a tile's
// tokens, each warp 64 columns, so that one row spreads over up to 8 SMs.
#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/expand_tile.cuh"
#include "kernels/norm/norm_cuda.h"

namespace rootstock::kernels::cuda {

constexpr int kNormMaxWarps = 16;
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

// What a lane holds of its two tokens: 8 columns each.
template <bool kLora>
struct NormTokens {
  using Expand = ExpandTile<1, 1>;
  const AddNormArgs& args;
  int column;
  int token[2];
  uint4 delta[2];
  float x[2][8];

  __device__ NormTokens(const AddNormArgs& a, int c) : args(a), column(c) {}

  __device__ __forceinline__ size_t At(int e) const {
    return static_cast<size_t>(token[e]) * args.n + column;
  }

  __device__ __forceinline__ void SetTokens(const LoraTile& tile, const Expand& expand, int octet,
                                            bool live) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      token[e] = expand.template Token<kLora>(tile, octet, e);
      if (!live) token[e] = -1;
    }
  }

  // Past the first cache, which may hold what was there before the residual was last written.
  __device__ __forceinline__ void LoadResidual() {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (token[e] >= 0) LoadL2x8(args.residual + At(e), x[e]);
    }
  }

  __device__ __forceinline__ void LoadDelta() {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      delta[e] = {};
      if (token[e] < 0 || args.delta == nullptr) continue;
      delta[e] =
          *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(args.delta) + At(e));
    }
  }

  // x += delta + LoRA; squares become the lane's share of its tokens' Σ residual².
  __device__ __forceinline__ void Add(const Expand& expand, float (&squares)[2]) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      squares[e] = 0.0f;
      if (token[e] < 0) continue;
      float added[8];
      Unpack8(delta[e], added);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (kLora) added[i] += expand.Delta(0, i, e);
        x[e][i] += added[i];
        squares[e] += x[e][i] * x[e][i];
      }
    }
  }

  // The residual too: before the sums its way would be waited for with those of the cluster.
  __device__ __forceinline__ void Store(const float (&squares)[2], const float (&weight)[8]) {
    auto* out = static_cast<__nv_bfloat16*>(args.out);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (token[e] < 0) continue;
      if (args.delta != nullptr) Store8(args.residual + At(e), x[e]);
      const float inverse = rsqrtf(squares[e] / static_cast<float>(args.n) + args.eps);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[e][i] = weight[i] * (x[e][i] * inverse);
      Store8(out + At(e), x[e]);
    }
  }
};

// grid [cluster · workers], cluster · warps · 64 ≥ n. The workers share the tiles' octets.
template <bool kLora>
__global__ void __launch_bounds__(32 * kNormMaxWarps)
    AddNormTileKernel(AddNormArgs args, LoraStep step, LoraTargets targets, int splits,
                      int cluster) {
  using Expand = ExpandTile<1, 1>;
  __shared__ NormShared shared;
  GridLaunchDependents();
  const int workers = gridDim.x / cluster;
  const int octets = kLora ? LoraTileTokens(args.tokens) / 8 : 1;  // of a tile
  const int warp = blockIdx.x % cluster * (blockDim.x / 32) + threadIdx.x / 32;
  const int column = warp * 64 + 8 * Expand::Group();
  const bool live = column < args.n;
  const ExpandPiece pieces[1] = {live ? PieceAt(targets, column) : ExpandPiece{}};
  float weight[8] = {};
  if (live) Load8(args.weight + column, weight);
  ClusterSync();  // the other blocks' shared memory is there
  int turn = 0;
  for (int index = blockIdx.x / cluster;; index += workers) {
    const LoraTile tile = TileAt<kLora>(step, args.tokens, index / octets);
    const int octet = index % octets;
    if (tile.count == 0) break;             // for all of the cluster
    if (octet * 8 >= tile.count) continue;  // likewise
    Expand expand;
    if (kLora) {
      expand.SetTile(step, targets, tile, pieces);
      if (octet > 0) expand.SetOctet(step, octet);
      expand.LoadFirst(step, pieces);
    }
    // With a delta the residual is older than the kernel before (norm_cuda.h). It has left the
    // second cache, and after the wait it would queue behind the weights of the kernel that
    // follows.
    NormTokens<kLora> tokens(args, column);
    tokens.SetTokens(tile, expand, octet, live);
    if (args.delta != nullptr) tokens.LoadResidual();
    GridDependencyWait();
    if (args.delta == nullptr) tokens.LoadResidual();
    tokens.LoadDelta();
    if (kLora) expand.Sum(step, targets, splits);
    float squares[2];
    tokens.Add(expand, squares);
    RowSums(shared, turn, cluster, squares);
    tokens.Store(squares, weight);
    turn ^= 1;
  }
  if (blockIdx.x == 0) GridDependencyWait();
}

}  // namespace rootstock::kernels::cuda
