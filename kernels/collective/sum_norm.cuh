// A cluster takes a row, a thread 8 columns of it: it adds LoRA to its part, pushes that to the
// peers, takes theirs, and goes on with residual and norm.
#pragma once

#include <cooperative_groups.h>

#include "kernels/collective/peer_exchange.cuh"
#include "kernels/collective/sum_norm_cuda.h"
#include "kernels/lora/lora_device.cuh"

namespace rootstock::kernels::cuda {

constexpr int kWarpColumns = 256;
constexpr int kSumNormThreads = 1024;     // of a block, at most
constexpr int kSumNormLoraThreads = 256;  // the same with LoRA
constexpr int kMostSumNormColumns = 16384;
constexpr int kMostRowWarps = kMostSumNormColumns / kWarpColumns;

// 8 elements of T.
template <typename T>
struct Columns {
  static constexpr int kPieces = sizeof(T) / 2;  // of 16 bytes
  uint4 raw[kPieces];

  __device__ __forceinline__ void Load(const T* p) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) raw[i] = LoadL2(reinterpret_cast<const uint4*>(p) + i);
  }
  __device__ __forceinline__ void Unpack(float (&x)[8]) const {
    if constexpr (sizeof(T) == 2) {
      Unpack8(raw[0], x);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        x[4 * i] = __uint_as_float(raw[i].x), x[4 * i + 1] = __uint_as_float(raw[i].y);
        x[4 * i + 2] = __uint_as_float(raw[i].z), x[4 * i + 3] = __uint_as_float(raw[i].w);
      }
    }
  }
  __device__ __forceinline__ void Pack(const float (&x)[8]) {
    if constexpr (sizeof(T) == 2) {
      raw[0] = {PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]),
                PackBf16(x[6], x[7])};
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        raw[i] = {__float_as_uint(x[4 * i]), __float_as_uint(x[4 * i + 1]),
                  __float_as_uint(x[4 * i + 2]), __float_as_uint(x[4 * i + 3])};
      }
    }
  }
};

// The LoRA of one token at a thread's 8 columns. The whole block calls every function.
template <typename T>
class RowLora {
 public:
  // B's rows in registers at a time.
  static constexpr int kRows = sizeof(T) == 2 ? 12 : 8;

  __device__ RowLora(const SumNormLora& lora, int token, int column)
      : step_(lora.step), lora_(lora), column_(column), entry_(lora.step.row_of[token]) {
    SetEntry();
  }

  // B's first rows: no kernel of the step writes them, so they may come before the wait.
  __device__ __forceinline__ void LoadFirst() {
    LoadRows(0);
    for (int r = kRows; r < rank_ && threadIdx.x % 8 == 0; ++r) {
      if (features_ > 0) PrefetchL2(SlabRow<T>(step_, __ldg(b_ + r)) + at_);
    }
  }

  // x += scale · v · B; v [kMaxLoraRank] is shared memory.
  __device__ __forceinline__ void Add(int splits, float* v, float (&x)[8]) {
    for (bool first = true; entry_ >= 0; first = false) {
      const LoraRow& row = step_.rows[entry_];
      if (row.sites == nullptr) break;
      if (!first) {
        SetEntry();
        LoadRows(0);
        __syncthreads();  // v of the entry before was read
      }
      const float* parts = VOf(step_, splits, row.member, 0);
      const int padded = PaddedRank(rank_);
      for (int r = threadIdx.x; r < rank_; r += blockDim.x) {
        float sum = 0.0f;
        for (int s = 0; s < splits; ++s) sum += parts[s * padded + r];
        v[r] = sum * scale_ * row.scale;
      }
      __syncthreads();
      for (int k = 0; k < rank_; k += kRows) {
        if (k > 0) LoadRows(k);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          if (k + i >= rank_) break;
          float b[8];
          rows_[i].Unpack(b);
#pragma unroll
          for (int c = 0; c < 8; ++c) x[c] += v[k + i] * b[c];
        }
      }
      entry_ = row.next;
    }
  }

 private:
  __device__ __forceinline__ void SetEntry() {
    rank_ = features_ = 0;
    const LoraSiteEntry* sites = step_.rows[entry_].sites;
    if (sites == nullptr) return;
    // An adapter is whole or in slices; its other site has no components.
    const LoraSiteEntry* site = &SiteOf(sites, lora_.whole, 0);
    int first = lora_.whole.column[0];
    int features = lora_.whole.features[0];
    if (site->lora_rank == 0 && lora_.slice.count > 0) {
      site = &SiteOf(sites, lora_.slice, 0);
      first = lora_.slice.column[0];
      features = lora_.slice.features[0];
    }
    b_ = site->b;
    rank_ = site->lora_rank;
    scale_ = site->scale;
    at_ = column_ - first;
    features_ = at_ >= 0 && at_ < features ? 8 : 0;
  }

  // Rows k … k + kRows - 1; zeros where there are none.
  __device__ __forceinline__ void LoadRows(int k) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      rows_[i] = {};
      if (features_ > 0 && k + i < rank_) rows_[i].Load(SlabRow<T>(step_, __ldg(b_ + k + i)) + at_);
    }
  }

  const LoraStep& step_;
  const SumNormLora& lora_;
  const int column_;
  int entry_;
  const uint32_t* b_ = nullptr;
  int rank_ = 0, at_ = 0;
  int features_ = 0;  // 0: the adapter has nothing at these columns
  float scale_ = 0.0f;
  Columns<T> rows_[kRows];
};

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
__global__ void __launch_bounds__(kLora ? kSumNormLoraThreads : kSumNormThreads)
    SumNormKernel(const __grid_constant__ PeerGroup group, const __grid_constant__ SumNormArgs args,
                  const __grid_constant__ SumNormLora lora, int splits, unsigned cluster) {
  __shared__ float part[kMostRowWarps];
  __shared__ float v[kLora ? kMaxLoraRank : 1];
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
  // See AddNormTileKernel.
  if constexpr (kLora) {
    if (live) PrefetchL2(args.residual + at);
    RowLora<T> added(lora, token, live ? column : -1);
    added.LoadFirst();
    if (cluster > 1) RowSync(cluster);  // the other blocks' shared memory is there
    GridDependencyWait();
    load_delta();
    added.Add(splits, v, x);
    load_row();
  } else {
    load_row();
    if (cluster > 1) RowSync(cluster);
    GridDependencyWait();
    load_delta();
  }
  const PeerCall call(group);
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
