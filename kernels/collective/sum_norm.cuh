// A cluster takes a row, a thread 8 columns of it: it adds LoRA to its part, pushes that to the
// peers, takes theirs, and goes on with residual and norm.
#pragma once

#include <cooperative_groups.h>

#include <type_traits>

#include "kernels/collective/peer_exchange.cuh"
#include "kernels/collective/sum_norm_row.cuh"

namespace rootstock::kernels::cuda {

constexpr int kSumNormThreads = 1024;  // of a block, at most
// The same with LoRA, whose blocks hold B in registers and should find room beside those of a GEMM:
// better no more than the first, wide rows take the second.
constexpr int kSumNormLoraThreads = 128;
constexpr int kMostSumNormLoraThreads = 256;

__device__ __forceinline__ void RowSync(unsigned cluster) {
#if __CUDA_ARCH__ >= 900
  if (cluster > 1) {
    cooperative_groups::this_cluster().sync();
    return;
  }
#endif
  __syncthreads();
}

// Σ of `mine` over the row, in an order that n alone sets; part [kMostRowWarps] of every block of
// the row gets all warps' sums.
__device__ __forceinline__ float RowSum(float mine, float* part, unsigned cluster) {
  const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const int warp = blockIdx.x % cluster * warps + threadIdx.x / 32;
  mine = WarpSum(mine);
  if (lane < cluster) {
    float* to = part + warp;
#if __CUDA_ARCH__ >= 900
    if (cluster > 1) to = cooperative_groups::this_cluster().map_shared_rank(to, lane);
#endif
    *to = mine;
  }
  RowSync(cluster);
  float sum = 0.0f;
  for (int w = 0; w < warps * static_cast<int>(cluster); ++w) sum += part[w];
  return sum;
}

// Sums the thread's 8 columns over the ranks; x keeps the own part where the call was given up.
template <typename T, int kRanks>
__device__ __forceinline__ void SumColumns(const PeerCall& call, int tokens, int n, size_t at,
                                           bool live, float (&x)[8]) {
  constexpr int kPieces = Columns<T>::kPieces;
  const size_t row = n * sizeof(T) / 16, pieces = tokens * row;  // of 16 bytes
  const size_t first = at / 8 * kPieces;
  Columns<T> own;
  own.Pack(x);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) own.raw[i] = Full(own.raw[i]);
#pragma unroll
  for (int r = 0; r < kRanks; ++r) {
    if (!live || r >= call.group.size || r == call.group.rank) continue;
    uint4* const to = call.Inbox(r) + PlaceOf(call.group.rank, r) * pieces + first;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) StoreVolatile16(to + i, own.raw[i]);
  }
  call.Arrive();
  uint4* const inbox = call.Inbox(call.group.rank) + first;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (live && !SumPiece<T, kRanks>(call, own.raw[i], inbox + i, pieces, own.raw[i])) break;
  }
  own.Unpack(x);
}

// grid [cluster · tokens]; cluster · blockDim.x · 8 ≥ n.
template <typename T, int kRanks, bool kLora>
__global__ void __launch_bounds__(kLora ? kMostSumNormLoraThreads : kSumNormThreads, kLora ? 2 : 1)
    SumNormKernel(const __grid_constant__ PeerGroup group, const __grid_constant__ SumNormArgs args,
                  const __grid_constant__ SumNormLora lora, int splits, unsigned cluster) {
  __shared__ float part[kMostRowWarps];
  using Lora = std::conditional_t<kLora, RowLora<T>, NoLora>;
  __shared__ typename Lora::Shared of_lora;
  GridLaunchDependents();
  const int token = blockIdx.x / cluster;
  const int column = 8 * (blockIdx.x % cluster * blockDim.x + threadIdx.x);
  const bool live = column < args.n;
  const size_t at = static_cast<size_t>(token) * args.n + (live ? column : 0);
  float residual[8] = {}, weight[8] = {}, x[8] = {};
  const auto load_row = [&] {
    if (live) Load8(args.weight + column, weight);
    if (live) LoadL2x8(args.residual + at, residual);
  };
  const auto load_delta = [&] {
    if (!live) return;
    Columns<T> delta;
    delta.Load(static_cast<const T*>(args.delta) + at);
    delta.Unpack(x);
  };
  // See AddNormTileKernel. B is in the registers that the row would take.
  Lora added(lora, token, live ? column : -1, of_lora);
  if (kLora) {
    if (live) PrefetchL2(args.residual + at);
    if (live) PrefetchL1(args.weight + column);
  } else {
    load_row();
  }
  added.LoadFirst();
  if (cluster > 1) RowSync(cluster);  // the other blocks' shared memory is there
  GridDependencyWait();
  const PeerCall call(group);
  load_delta();
  added.Add(splits, x);
  if (kLora) load_row();
  // A row's blocks wait for one another below, so none may leave.
  if (!__syncthreads_or(call.dead)) SumColumns<T, kRanks>(call, args.tokens, args.n, at, live, x);
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i] = live ? residual[i] + x[i] : 0.0f;
    squares += x[i] * x[i];
  }
  const float sum = RowSum(squares, part, cluster);
  if (!live) return;
  Store8(args.residual + at, x);
  const float inverse = rsqrtf(sum / static_cast<float>(args.n) + args.eps);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = weight[i] * (x[i] * inverse);
  Store8(static_cast<T*>(args.out) + at, x);
}

}  // namespace rootstock::kernels::cuda
