// Expand of a tile's tokens by one warp on tensor cores, for the consumers of a projection (bf16).
//
// With g = lane / 4 and q = lane % 4: a lane ends with columns 8g … 8g + 7 of each of kParts pieces
// of 64 columns, for tokens 2q and 2q + 1 of 8 (an octet of the tile's). In the mma the rows are
// output columns and the columns are tokens:
//   delta [column, token] = Σ_r Bᵀ[r][column] · bf16(scale · v[token][r]);
// v and scale are f32 until that rounding, sums are f32. A lane loads 16 bytes of four rows of Bᵀ,
// so that 8 lanes read 128 bytes of a row; no shared memory. A token's result does not depend on
// the tokens beside it.
#pragma once

#include "kernels/cuda/mma.cuh"
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

// The tiles of a launch. Without LoRA a row is its token and a tile 8 of them.
template <bool kLora>
__device__ __forceinline__ LoraTile TileAt(const LoraStep& step, int num_tokens, int index) {
  if constexpr (kLora) {
    if (index >= step.max_tiles) return {};
    LoraTile tile;
    reinterpret_cast<int4&>(tile) = __ldg(reinterpret_cast<const int4*>(step.tiles) + index);
    return tile;
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
      const int count = index < step.max_tiles ? __ldg(&step.tiles[index].count) : 0;
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
  __device__ int tile() const { return at / pieces; }
  __device__ int piece() const { return at % pieces; }
};

// kTargets: 1 if the pieces lie in one target, else a target each.
template <int kParts, int kTargets>
class ExpandTile {
  static_assert(kTargets == 1 || kTargets == kParts);
  static constexpr int Of(int p) { return kTargets == 1 ? 0 : p; }

 public:
  float delta[kParts][4][4];  // [piece][pair of columns][mma's d]

  // The tables of a tile whose columns lie in the targets of `pieces`. This and LoadFirst read what
  // no kernel of the step writes: they may come before GridDependencyWait.
  __device__ __forceinline__ void SetTile(const LoraStep& step, const LoraTargets& targets,
                                          const LoraTile& tile,
                                          const ExpandPiece (&pieces)[kParts]) {
    tile_ = tile;
    max_rank_ = 0;
#pragma unroll
    for (int t = 0; t < kTargets; ++t) {
      target_[t] = pieces[t].target;
      site_[t] = {};
      if (tile.sites != nullptr && target_[t] >= 0) {
        site_[t] = SiteOf(tile.sites, targets, target_[t]);
      }
    }
    SetOctet(step, 0);
#pragma unroll
    for (int t = 0; t < kTargets; ++t) {
      max_rank_ = max(max_rank_, site_[t].lora_rank);
      LoadOffsets(t, 0, offset_[t]);
    }
  }

  // The tokens from 8 · octet on.
  __device__ __forceinline__ void SetOctet(const LoraStep& step, int octet) {
    const int slot = octet * 8 + Group();
    row_ = slot < tile_.count ? step.rows[tile_.first + slot] : LoraRow{};
    has_v_ = false;
  }

  // The first 16 rows of Bᵀ at `pieces`, for one octet; the others go to the second cache.
  __device__ __forceinline__ void LoadFirst(const LoraStep& step,
                                            const ExpandPiece (&pieces)[kParts]) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      column_[p] = pieces[p].column;
      LoadRows(step, p, 0, offset_[Of(p)]);
    }
    if (max_rank_ <= 16) return;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const LoraSiteEntry& site = site_[Of(p)];
#pragma unroll 1
      for (int r = 16 + threadIdx.x % 32; r < site.lora_rank; r += 32) {
        PrefetchL2(SlabRow<__nv_bfloat16>(step, __ldg(site.b + r)) + column_[p] - 8 * Group());
      }
    }
  }

  // The first rows at the pieces after these, to the second cache.
  __device__ __forceinline__ void PrefetchNext(const LoraStep& step, int columns) const {
#pragma unroll
    for (int p = 0; p < kParts; ++p)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (4 * Quad() + i < site_[Of(p)].lora_rank) {
          PrefetchL2(SlabRow<__nv_bfloat16>(step, offset_[Of(p)][i]) + column_[p] + columns);
        }
      }
  }

  // The sums of the octet, of v as Shrink left it: call it after the wait.
  __device__ __forceinline__ void Sum(const LoraStep& step, const LoraTargets& targets,
                                      int splits) {
#pragma unroll
    for (int p = 0; p < kParts; ++p)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) delta[p][j][c] = 0.0f;
    if (max_rank_ > 0) {
#pragma unroll
      for (int t = 0; t < kTargets; ++t) {
        if (!has_v_) v_[t] = LoadV(step, splits, t, 0);
      }
      has_v_ = true;
      Multiply(0, v_);
    }
    if (max_rank_ > 16) SumRest(step, splits);
    AddStacked(step, targets, splits);
  }

  // Column i (of 8) of piece p for token 2q + e.
  __device__ __forceinline__ float Delta(int p, int i, int e) const {
    return delta[p][i / 2][i % 2 * 2 + e];
  }
  // Token 2q + e of the octet, -1 beyond the tile. All lanes must call it.
  template <bool kLora>
  __device__ __forceinline__ int Token(const LoraTile& tile, int octet, int e) const {
    const int slot = octet * 8 + 2 * Quad() + e;
    int token = tile.first + slot;
    if constexpr (kLora) token = __shfl_sync(~0u, row_.token, 8 * Quad() + 4 * e);
    return slot < tile.count ? token : -1;
  }

  static __device__ __forceinline__ int Group() { return threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int Quad() { return threadIdx.x % 4; }

 private:
  // Of rows k + 4q … k + 4q + 3.
  __device__ __forceinline__ void LoadOffsets(int t, int k, uint32_t (&offset)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = k + 4 * Quad() + i;
      offset[i] = r < site_[t].lora_rank ? __ldg(site_[t].b + r) : 0;
    }
  }

  // Those rows at the lane's columns; zeros beyond the rank.
  __device__ __forceinline__ void LoadRows(const LoraStep& step, int p, int k,
                                           const uint32_t (&offset)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      b_[p][i] = {};
      if (k + 4 * Quad() + i < site_[Of(p)].lora_rank) {
        b_[p][i] = LoadConstant16(SlabRow<__nv_bfloat16>(step, offset[i]) + column_[p]);
      }
    }
  }

  // Ranks from 16 on.
  __device__ __forceinline__ void SumRest(const LoraStep& step, int splits) {
    uint32_t offset[kTargets][4];
#pragma unroll
    for (int t = 0; t < kTargets; ++t) LoadOffsets(t, 16, offset[t]);
#pragma unroll 1
    for (int k = 16; k < max_rank_; k += 16) {
#pragma unroll
      for (int p = 0; p < kParts; ++p) LoadRows(step, p, k, offset[Of(p)]);
      uint2 v[kTargets];
#pragma unroll
      for (int t = 0; t < kTargets; ++t) {
        LoadOffsets(t, k + 16, offset[t]);
        v[t] = LoadV(step, splits, t, k);
      }
      Multiply(k, v);
    }
  }

  // scale · v[k + 4q … k + 4q + 3] of slot g, as the mma's b.
  __device__ __forceinline__ uint2 LoadV(const LoraStep& step, int splits, int t, int k) const {
    const int padded = PaddedRank(site_[t].lora_rank);
    if (row_.sites == nullptr || k >= padded) return {};
    const float* v = VOf(step, splits, row_.member, target_[t]) + k + 4 * Quad();
    float4 sum = {};
#pragma unroll 1
    for (int first = 0; first < splits; first += 4) {
      float4 part[4] = {};
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        if (first + s < splits) {
          part[s] = *reinterpret_cast<const float4*>(v + (first + s) * padded);
        }
      }
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        sum.x += part[s].x, sum.y += part[s].y, sum.z += part[s].z, sum.w += part[s].w;
      }
    }
    const float scale = site_[t].scale * row_.scale;
    return {PackBf16(scale * sum.x, scale * sum.y), PackBf16(scale * sum.z, scale * sum.w)};
  }

  __device__ __forceinline__ void Multiply(int k, const uint2 (&v)[kTargets]) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      if (k >= site_[Of(p)].lora_rank) continue;
      const uint4(&b)[4] = b_[p];
      MultiplyPair(b[0].x, b[1].x, b[2].x, b[3].x, v[Of(p)], delta[p][0]);
      MultiplyPair(b[0].y, b[1].y, b[2].y, b[3].y, v[Of(p)], delta[p][1]);
      MultiplyPair(b[0].z, b[1].z, b[2].z, b[3].z, v[Of(p)], delta[p][2]);
      MultiplyPair(b[0].w, b[1].w, b[2].w, b[3].w, v[Of(p)], delta[p][3]);
    }
  }

  // Two columns of four rows of Bᵀ.
  static __device__ __forceinline__ void MultiplyPair(uint32_t b0, uint32_t b1, uint32_t b2,
                                                      uint32_t b3, const uint2& v, float (&d)[4]) {
    MmaBf16(d, __byte_perm(b0, b1, 0x5410), __byte_perm(b0, b1, 0x7632),
            __byte_perm(b2, b3, 0x5410), __byte_perm(b2, b3, 0x7632), v.x, v.y);
  }

  // The further adapters of stacked tokens: rare, so without tensor cores; v is not rounded.
  __device__ __forceinline__ void AddStacked(const LoraStep& step, const LoraTargets& targets,
                                             int splits) {
    if (!__any_sync(~0u, row_.next >= 0)) return;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      int entry = __shfl_sync(~0u, row_.next, 8 * Quad() + 4 * e);
#pragma unroll 1
      for (; entry >= 0; entry = step.rows[entry].next) {
#pragma unroll
        for (int p = 0; p < kParts; ++p) AddEntry(step, targets, splits, entry, p, e);
      }
    }
  }

  __device__ __forceinline__ void AddEntry(const LoraStep& step, const LoraTargets& targets,
                                           int splits, int entry, int p, int e) {
    if (target_[Of(p)] < 0) return;
    const LoraRow row = step.rows[entry];
    const LoraSiteEntry site = SiteOf(row.sites, targets, target_[Of(p)]);
    const float* v = VOf(step, splits, row.member, target_[Of(p)]);
    const int padded = PaddedRank(site.lora_rank);
#pragma unroll 1
    for (int r = 0; r < site.lora_rank; ++r) {
      float sum = 0.0f;
#pragma unroll 1
      for (int s = 0; s < splits; ++s) sum += v[s * padded + r];
      sum *= site.scale * row.scale;
      float b[8];
      Load8(SlabRow<__nv_bfloat16>(step, site.b[r]) + column_[p], b);
#pragma unroll
      for (int i = 0; i < 8; ++i) delta[p][i / 2][i % 2 * 2 + e] += sum * b[i];
    }
  }

  LoraTile tile_;
  LoraRow row_;  // of slot 8 · octet + g
  int target_[kTargets], column_[kParts];
  LoraSiteEntry site_[kTargets];
  int max_rank_;
  uint32_t offset_[kTargets][4];  // of the first rows of Bᵀ
  uint4 b_[kParts][4];            // rows of Bᵀ
  bool has_v_;
  uint2 v_[kTargets];  // the octet's first 16 ranks
};

}  // namespace rootstock::kernels::cuda
