// What LoRA adds to a gated tile where adapters have about a token each: gate and up of a row of
// tokens by one warp at once, eight warps of a block.
#pragma once

#include "kernels/linear/stream_lora.cuh"
#include "kernels/linear/stream_plan.h"

namespace rootstock::kernels::cuda {

// Tiles of a step of at most 64 tokens, as bits.
struct TileMask {
  uint32_t low = 0, high = 0;

  __device__ __forceinline__ int Count() const { return __popc(low) + __popc(high); }
  // The n-th of them.
  __device__ __forceinline__ int At(int n) const {
    const int in_low = __popc(low);
    return n < in_low ? __fns(low, 0, n + 1) : 32 + __fns(high, 0, n + 1 - in_low);
  }
};

// rows: of one token that one adapter, or none, runs on; others: the rest. All lanes call it.
struct SortedTiles {
  __device__ __forceinline__ explicit SortedTiles(const LoraStep& step) {
    uint32_t row[2], other[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const LoraTile tile = TileAt<true>(step, 0, 32 * h + threadIdx.x % 32);
      const bool one = tile.count == 1 && LoadKept(&step.rows[tile.first].next) < 0;
      row[h] = __ballot_sync(~0u, one);
      other[h] = __ballot_sync(~0u, !one && tile.count > 0);
    }
    rows = {row[0], row[1]};
    others = {other[0], other[1]};
  }

  TileMask rows, others;
};

// The warp's share of `rows`, with the bits of ExpandTile: as in ExpandRow of four pieces of 64
// columns, the first two of gate, and a lane keeps 8 columns of the piece that its quad stands for.
// Lane l holds the tables of the warp's l-th tile, so that a tile's loads wait for one another
// once.
class GatedRows {
 public:
  // first: of the `half` columns of gate and of up.
  __device__ __forceinline__ GatedRows(const LoraStep& step, const LoraTargets& targets, int splits,
                                       int up_row, int first, int half)
      : step_(step), splits_(splits), half_(min(half, up_row - first)) {
#pragma unroll
    for (int of = 0; of < 2; ++of) {
      target_[of] = half_ > 0 ? TargetOf(targets, of * up_row + first) : -1;
      column_[of] = of * up_row + first - (target_[of] < 0 ? 0 : Pick(targets.column, target_[of]));
    }
  }

  // Tiles `warp`, warp + warps, … of `rows`. What no kernel writes: it may come before v.
  __device__ __forceinline__ void Set(const LoraTargets& targets, const TileMask& rows, int warp,
                                      int warps) {
    const int lane = threadIdx.x % 32;
    count_ = (rows.Count() - warp + warps - 1) / warps;
    if (lane >= count_) return;
    const LoraTile tile = TileAt<true>(step_, 0, rows.At(warp + lane * warps));
    const LoraRow row = LoadKept(step_.rows + tile.first);
    token_ = row.token;
    member_ = row.member;
#pragma unroll
    for (int of = 0; of < 2; ++of) {
      if (tile.sites == nullptr || target_[of] < 0) continue;
      const LoraSiteEntry site = LoadKept(&SiteOf(tile.sites, targets, target_[of]));
      rank_[of] = site.lora_rank;
      scale_[of] = site.scale * row.scale;
      b_[of] = site.b;
    }
  }

  // delta [token][2][pitch]. wait: returns when v is there; called before its first use.
  template <typename Wait>
  __device__ __forceinline__ void Run(int tokens, int pitch, float* delta, Wait wait) const {
    uint32_t offset = OffsetOf(0);
#pragma unroll 1
    for (int l = 0; l < count_; ++l) {
      float out[8] = {};
      if (max(Held(rank_[0], l), Held(rank_[1], l)) <= 16) {
        uint4 b[4][4];
        LoadRows(0, offset, 0, b[0], b[1]);
        LoadRows(1, offset, 16, b[2], b[3]);
        offset = OffsetOf(l + 1);
        wait();
        const uint2 v[2] = {LoadV(0, l, 0), LoadV(1, l, 0)};
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          float d[4][4] = {};
          Multiply(b[p], v[p / 2], d);
          Keep(p, d, out);
        }
      } else {
        offset = OffsetOf(l + 1);
        wait();
        SumAll(0, l, out);
        SumAll(1, l, out);
      }
      const int at = Quad() % 2 * 64 + 8 * Group();
      const int token = Held(token_, l);
      if (token < tokens && at < half_) Store8(delta + (token * 2 + Quad() / 2) * pitch + at, out);
    }
  }

 private:
  static constexpr uint32_t kNoRow = ~0u;
  static __device__ __forceinline__ int Group() { return threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int Quad() { return threadIdx.x % 4; }
  template <typename T>
  static __device__ __forceinline__ T Held(T of_lane, int l) {
    return __shfl_sync(~0u, of_lane, l % 32);
  }
  static __device__ __forceinline__ const uint32_t* Held(const uint32_t* of_lane, int l) {
    const auto bits = reinterpret_cast<unsigned long long>(of_lane);
    return reinterpret_cast<const uint32_t*>(Held(bits, l));
  }

  // Lane 16 · of + r: where row r of tile l's Bᵀ lies.
  __device__ __forceinline__ uint32_t OffsetOf(int l) const {
    const int r = threadIdx.x % 16;
    const bool up = threadIdx.x % 32 >= 16;
    const uint32_t* gate_b = Held(b_[0], l);
    const uint32_t* up_b = Held(b_[1], l);
    const int gate_rank = Held(rank_[0], l), up_rank = Held(rank_[1], l);
    if (l >= count_ || r >= (up ? up_rank : gate_rank)) return kNoRow;
    return LoadKept((up ? up_b : gate_b) + r);
  }

  // Both pieces of gate or up: four rows a lane, which lie where lanes from `lane` on say.
  __device__ __forceinline__ void LoadRows(int of, uint32_t offset, int lane, uint4 (&b0)[4],
                                           uint4 (&b1)[4]) const {
    const int at = 8 * Group();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t row = __shfl_sync(~0u, offset, lane + 4 * Quad() + i);
      b0[i] = b1[i] = {};
      if (row == kNoRow) continue;
      const __nv_bfloat16* from = SlabRow<__nv_bfloat16>(step_, row) + column_[of] + at;
      if (at < half_) b0[i] = LoadConstant16(from);
      if (64 + at < half_) b1[i] = LoadConstant16(from + 64);
    }
  }

  // scale · v[k + 4q …] as the mma's b, the same for all of its columns.
  __device__ __forceinline__ uint2 LoadV(int of, int l, int k) const {
    constexpr int kBatch = 2;
    const int padded = PaddedRank(Held(rank_[of], l));
    const float scale = Held(scale_[of], l);
    const float* from = VOf(step_, splits_, Held(member_, l), max(target_[of], 0)) + k + 4 * Quad();
    float4 sum = {};
#pragma unroll 1
    for (int first = 0; first < splits_; first += kBatch) {
      float4 part[kBatch] = {};
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        if (k < padded && first + s < splits_) {
          part[s] = *reinterpret_cast<const float4*>(from + (first + s) * padded);
        }
      }
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        sum.x += part[s].x, sum.y += part[s].y, sum.z += part[s].z, sum.w += part[s].w;
      }
    }
    return {PackBf16(scale * sum.x, scale * sum.y), PackBf16(scale * sum.z, scale * sum.w)};
  }

  static __device__ __forceinline__ void Multiply(const uint4 (&b)[4], const uint2& v,
                                                  float (&d)[4][4]) {
    MultiplyColumnPair(b[0].x, b[1].x, b[2].x, b[3].x, v, d[0]);
    MultiplyColumnPair(b[0].y, b[1].y, b[2].y, b[3].y, v, d[1]);
    MultiplyColumnPair(b[0].z, b[1].z, b[2].z, b[3].z, v, d[2]);
    MultiplyColumnPair(b[0].w, b[1].w, b[2].w, b[3].w, v, d[3]);
  }
  static __device__ __forceinline__ void Keep(int p, const float (&d)[4][4], float (&out)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = Quad() == p ? d[i / 2][i % 2 * 2] : out[i];
  }

  // Gate's or up's two pieces of tile l, of any rank. All rows go to the second cache first.
  __device__ __forceinline__ void SumAll(int of, int l, float (&out)[8]) const {
    const int lane = threadIdx.x % 32;
    const int rank = Held(rank_[of], l);
    const uint32_t* rows = Held(b_[of], l);
    for (int r = lane; r < rank; r += 32) {
      const __nv_bfloat16* row = SlabRow<__nv_bfloat16>(step_, LoadKept(rows + r)) + column_[of];
      PrefetchL2(row);
      if (half_ > 64) PrefetchL2(row + 64);
    }
    float d[2][4][4] = {};
    uint32_t offset = lane < min(rank, 16) ? LoadKept(rows + lane) : kNoRow;
#pragma unroll 1
    for (int k = 0; k < rank; k += 16) {
      uint4 b[2][4];
      LoadRows(of, offset, 0, b[0], b[1]);
      const int next = k + 16 + lane;
      offset = lane < 16 && next < rank ? LoadKept(rows + next) : kNoRow;
      const uint2 v = LoadV(of, l, k);
      Multiply(b[0], v, d[0]);
      Multiply(b[1], v, d[1]);
    }
    Keep(2 * of, d[0], out);
    Keep(2 * of + 1, d[1], out);
  }

  const LoraStep& step_;
  int splits_, half_;
  int target_[2], column_[2];
  int count_ = 0;  // of the warp's tiles
  int token_ = 0, member_ = 0, rank_[2] = {};
  float scale_[2] = {};
  const uint32_t* b_[2] = {};
};

constexpr int kGatedWarps = kGatedSets * kDecodeWarps;  // of a block, which expand

// Barrier of those warps.
__device__ __forceinline__ void SyncGatedWarps() {
  asm volatile("bar.sync 5, %0;" ::"n"(32 * kGatedWarps) : "memory");
}

// delta [m][2][DeltaPitch]: what LoRA adds to the block's tile of gate and up, with the bits of
// silu · mul's kernel. warp: of the kGatedWarps that share it.
__device__ __forceinline__ void ExpandGatedRows(const StreamParams& p, const StreamShrink& lora,
                                                int warp, float* delta) {
  const int half = p.rows / 2;
  const int first = static_cast<int>(blockIdx.x) * half;
  const SortedTiles tiles(lora.step);
  bool ready = false;
  const auto wait = [&] {
    if (!ready) ShrinkWait(lora);
    ready = true;
  };
  GatedRows rows(lora.step, lora.expand, lora.splits, p.up_row, first, half);
  rows.Set(lora.expand, tiles.rows, warp, kGatedWarps);
  rows.Run(p.m, DeltaPitch(half), delta, wait);
  const int pieces = (half + 63) / 64;
  const int pairs = tiles.others.Count() * pieces;
#pragma unroll 1
  for (int pair = kGatedWarps - 1 - warp; pair < pairs; pair += kGatedWarps) {
    const LoraTile tile = TileAt<true>(lora.step, 0, tiles.others.At(pair / pieces));
    ExpandGatedPiece(p, lora, tile, pair % pieces, wait, delta);
  }
  wait();
}

}  // namespace rootstock::kernels::cuda
