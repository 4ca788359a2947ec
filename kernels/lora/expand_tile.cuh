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
#include "kernels/lora/lora_tiles.cuh"

namespace rootstock::kernels::cuda {

struct Columns8 {
  float x[8];
};

// scale · v · Bᵀ of one entry at eight columns of a site; v: of the entry, [splits][padded rank].
// Rare: kept out of the way of the other code.
inline __device__ __noinline__ Columns8 ExpandEntry(const std::byte* slab,
                                                    const LoraSiteEntry* site, float scale,
                                                    const float* v, int splits, int column) {
  const int rank = site->lora_rank;
  Columns8 out = {};
#pragma unroll 1
  for (int r = 0; r < rank; ++r) {
    float sum = 0.0f;
#pragma unroll 1
    for (int s = 0; s < splits; ++s) sum += v[s * PaddedRank(rank) + r];
    sum *= site->scale * scale;
    float b[8];
    Load8(reinterpret_cast<const __nv_bfloat16*>(slab + site->b[r] * kRowUnit) + column, b);
#pragma unroll
    for (int i = 0; i < 8; ++i) out.x[i] += sum * b[i];
  }
  return out;
}

// d += two columns of four rows of Bᵀ, times v.
__device__ __forceinline__ void MultiplyColumnPair(uint32_t b0, uint32_t b1, uint32_t b2,
                                                   uint32_t b3, const uint2& v, float (&d)[4]) {
  MmaBf16(d, __byte_perm(b0, b1, 0x5410), __byte_perm(b0, b1, 0x7632), __byte_perm(b2, b3, 0x5410),
          __byte_perm(b2, b3, 0x7632), v.x, v.y);
}

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
        site_[t] = LoadKept(&SiteOf(tile.sites, targets, target_[t]));
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
    const LoraRow row = slot < tile_.count ? LoadKept(step.rows + tile_.first + slot) : LoraRow{};
    token_ = row.token;
    member_ = row.sites != nullptr ? row.member : -1;
    scale_ = row.scale;
    first_ = tile_.first + octet * 8;
    stacked_ = __any_sync(~0u, row.next >= 0);
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
      if (!has_v_) LoadV(step, splits, 0, v_);
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
    if constexpr (kLora) token = __shfl_sync(~0u, token_, 8 * Quad() + 4 * e);
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
      offset[i] = r < site_[t].lora_rank ? LoadKept(site_[t].b + r) : 0;
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
      LoadV(step, splits, k, v);
#pragma unroll
      for (int t = 0; t < kTargets; ++t) LoadOffsets(t, k + 16, offset[t]);
      Multiply(k, v);
    }
  }

  // scale · v[k + 4q … k + 4q + 3] of slot g for each target, as the mma's b. The splits of all
  // targets are on their way together.
  __device__ __forceinline__ void LoadV(const LoraStep& step, int splits, int k,
                                        uint2 (&v)[kTargets]) const {
    constexpr int kBatch = 8 / kTargets;
    const float* from[kTargets];
    int padded[kTargets];
    float4 sum[kTargets] = {};
#pragma unroll
    for (int t = 0; t < kTargets; ++t) {
      padded[t] = PaddedRank(site_[t].lora_rank);
      const bool any = member_ >= 0 && k < padded[t];
      from[t] = any ? VOf(step, splits, member_, target_[t]) + k + 4 * Quad() : nullptr;
    }
#pragma unroll 1
    for (int first = 0; first < splits; first += kBatch) {
      float4 part[kTargets][kBatch];
#pragma unroll
      for (int t = 0; t < kTargets; ++t)
#pragma unroll
        for (int s = 0; s < kBatch; ++s) {
          part[t][s] = {};
          if (from[t] != nullptr && first + s < splits) {
            part[t][s] = *reinterpret_cast<const float4*>(from[t] + (first + s) * padded[t]);
          }
        }
#pragma unroll
      for (int t = 0; t < kTargets; ++t)
#pragma unroll
        for (int s = 0; s < kBatch; ++s) {
          const float4& p = part[t][s];
          sum[t].x += p.x, sum[t].y += p.y, sum[t].z += p.z, sum[t].w += p.w;
        }
    }
#pragma unroll
    for (int t = 0; t < kTargets; ++t) {
      const float scale = site_[t].scale * scale_;
      v[t] = {PackBf16(scale * sum[t].x, scale * sum[t].y),
              PackBf16(scale * sum[t].z, scale * sum[t].w)};
    }
  }

  __device__ __forceinline__ void Multiply(int k, const uint2 (&v)[kTargets]) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      if (k >= site_[Of(p)].lora_rank) continue;
      const uint4(&b)[4] = b_[p];
      MultiplyColumnPair(b[0].x, b[1].x, b[2].x, b[3].x, v[Of(p)], delta[p][0]);
      MultiplyColumnPair(b[0].y, b[1].y, b[2].y, b[3].y, v[Of(p)], delta[p][1]);
      MultiplyColumnPair(b[0].z, b[1].z, b[2].z, b[3].z, v[Of(p)], delta[p][2]);
      MultiplyColumnPair(b[0].w, b[1].w, b[2].w, b[3].w, v[Of(p)], delta[p][3]);
    }
  }

  // The further adapters of stacked tokens: rare, so without tensor cores; v is not rounded.
  __device__ __forceinline__ void AddStacked(const LoraStep& step, const LoraTargets& targets,
                                             int splits) {
    if (!stacked_) return;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int slot = first_ + 2 * Quad() + e;
      int entry = slot < tile_.first + tile_.count ? step.rows[slot].next : -1;
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
    const LoraRow& row = step.rows[entry];
    const Columns8 sum =
        ExpandEntry(step.slab, &SiteOf(row.sites, targets, target_[Of(p)]), row.scale,
                    VOf(step, splits, row.member, target_[Of(p)]), splits, column_[p]);
#pragma unroll
    for (int i = 0; i < 8; ++i) delta[p][i / 2][i % 2 * 2 + e] += sum.x[i];
  }

  LoraTile tile_;
  int token_, member_;  // of slot 8 · octet + g; -1: no adapter
  float scale_;
  int first_;     // row of slot 8 · octet
  bool stacked_;  // one of the octet's tokens
  int target_[kTargets], column_[kParts];
  LoraSiteEntry site_[kTargets];
  int max_rank_;
  uint32_t offset_[kTargets][4];  // of the first rows of Bᵀ
  uint4 b_[kParts][4];            // rows of Bᵀ
  bool has_v_;
  uint2 v_[kTargets];  // the octet's first 16 ranks
};

}  // namespace rootstock::kernels::cuda
