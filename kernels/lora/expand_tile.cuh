// Expand of a tile's tokens by one warp on tensor cores, for the consumers of a projection (bf16).
//
// With g = lane / 4 and q = lane % 4: a lane ends with columns 8g … 8g + 7 of each of kParts pieces
// of 64 columns, for tokens 2q and 2q + 1 of each of kOctets groups of 8 tokens. In the mma the
// rows are output columns and the columns are tokens:
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

// The parts of tiles that one worker of several walks: `tokens` rows each. Without LoRA a row is
// its token.
struct TileWalk {
  int tile_tokens, part_tokens, num_tokens;

  __device__ TileWalk(int launch_tokens, int part)
      : tile_tokens(LoraTileTokens(launch_tokens)), part_tokens(part), num_tokens(launch_tokens) {}

  // Part `index`; count 0: an empty one, -1: there are no more.
  template <bool kLora>
  __device__ __forceinline__ LoraTile At(const LoraStep& step, int index) const {
    if constexpr (kLora) {
      const int parts = tile_tokens / part_tokens;
      if (index >= step.max_tiles * parts) return {nullptr, 0, -1};
      LoraTile tile;
      reinterpret_cast<int4&>(tile) =
          __ldg(reinterpret_cast<const int4*>(step.tiles) + index / parts);
      if (tile.count == 0) return {nullptr, 0, -1};
      const int skip = index % parts * part_tokens;
      return {tile.sites, tile.first + skip, min(part_tokens, max(0, tile.count - skip))};
    } else {
      const int first = index * part_tokens;
      return {nullptr, first, first < num_tokens ? min(part_tokens, num_tokens - first) : -1};
    }
  }
};

template <int kParts, int kOctets>
class ExpandTile {
 public:
  float delta[kOctets][kParts][4][4];  // [octet][piece][pair of columns][mma's d]

  // Loads what no kernel of the step writes: call it before GridDependencyWait.
  __device__ __forceinline__ void Begin(const LoraStep& step, const LoraTargets& targets,
                                        const LoraTile& tile, const ExpandPiece (&pieces)[kParts]) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      piece_[p] = pieces[p];
      site_[p] = {};
      if (tile.sites != nullptr && piece_[p].target >= 0) {
        site_[p] = SiteOf(tile.sites, targets, piece_[p].target);
      }
    }
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      const int slot = o * 8 + Group();
      row_[o] = slot < tile.count ? step.rows[tile.first + slot] : LoraRow{};
    }
    LoadB(step, 0);
#pragma unroll
    for (int p = 0; p < kParts; ++p) PrefetchRows(step, site_[p], piece_[p], 16);
  }

  // The rows of the tile after this one, to the second cache.
  static __device__ __forceinline__ void Prefetch(const LoraStep& step, const LoraTargets& targets,
                                                  const LoraTile& tile,
                                                  const ExpandPiece (&pieces)[kParts]) {
    if (tile.sites == nullptr || tile.count <= 0) return;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      if (pieces[p].target < 0) continue;
      PrefetchRows(step, SiteOf(tile.sites, targets, pieces[p].target), pieces[p], 0);
    }
  }

  // The sums, of v as Shrink left it: call it after the wait.
  __device__ __forceinline__ void Finish(const LoraStep& step, const LoraTargets& targets,
                                         int splits) {
#pragma unroll
    for (int o = 0; o < kOctets; ++o)
#pragma unroll
      for (int p = 0; p < kParts; ++p)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c) delta[o][p][j][c] = 0.0f;
    int max_rank = 0;
#pragma unroll
    for (int p = 0; p < kParts; ++p) max_rank = max(max_rank, site_[p].lora_rank);
#pragma unroll 1
    for (int k = 0; k < max_rank; k += 16) {
      if (k > 0) LoadB(step, k);
      Multiply(step, splits, k);
    }
    AddStacked(step, targets, splits);
  }

  // Column i (of 8) of piece p for token 2q + e of octet o.
  __device__ __forceinline__ float Delta(int o, int p, int i, int e) const {
    return delta[o][p][i / 2][i % 2 * 2 + e];
  }
  // The token of slot 8o + 2q + e, -1 beyond the tile. All lanes must call it.
  template <bool kLora>
  __device__ __forceinline__ int Token(int o, int e, const LoraTile& tile) const {
    const int slot = o * 8 + 2 * Quad() + e;
    int token = tile.first + slot;
    if constexpr (kLora) token = __shfl_sync(~0u, row_[o].token, 8 * Quad() + 4 * e);
    return slot < tile.count ? token : -1;
  }

  static __device__ __forceinline__ int Group() { return threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int Quad() { return threadIdx.x % 4; }

 private:
  // Rows k + 4q … k + 4q + 3 of every piece's Bᵀ at the lane's columns; zeros beyond the rank.
  __device__ __forceinline__ void LoadB(const LoraStep& step, int k) {
    uint32_t offset[kParts][4] = {};
    const int r = k + 4 * Quad();
#pragma unroll
    for (int p = 0; p < kParts; ++p)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (r + i < site_[p].lora_rank) offset[p][i] = __ldg(site_[p].b + r + i);
      }
#pragma unroll
    for (int p = 0; p < kParts; ++p)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        b_[p][i] = {};
        if (r + i < site_[p].lora_rank) {
          b_[p][i] = LoadConstant16(SlabRow<__nv_bfloat16>(step, offset[p][i]) + piece_[p].column);
        }
      }
  }

  static __device__ __forceinline__ void PrefetchRows(const LoraStep& step,
                                                      const LoraSiteEntry& site,
                                                      const ExpandPiece& piece, int from) {
    const int lora_rank = site.lora_rank;
    const uint32_t* rows = site.b;
#pragma unroll 1
    for (int r = from + threadIdx.x % 32; r < lora_rank; r += 32) {
      PrefetchL2(SlabRow<__nv_bfloat16>(step, __ldg(rows + r)) + piece.column - 8 * Group());
    }
  }

  // scale · v[k + 4q … k + 4q + 3] of octet o's slot g, as the mma's b.
  __device__ __forceinline__ uint2 LoadV(const LoraStep& step, int splits, int o, int p,
                                         int k) const {
    const int padded = PaddedRank(site_[p].lora_rank);
    if (row_[o].sites == nullptr || k >= padded) return {};
    const float* v = VOf(step, splits, row_[o].member, piece_[p].target) + k + 4 * Quad();
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
    const float scale = site_[p].scale * row_[o].scale;
    return {PackBf16(scale * sum.x, scale * sum.y), PackBf16(scale * sum.z, scale * sum.w)};
  }

  __device__ __forceinline__ void Multiply(const LoraStep& step, int splits, int k) {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      uint2 v = {};
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        if (p == 0 || piece_[p].target != piece_[p - 1].target) v = LoadV(step, splits, o, p, k);
        if (k >= site_[p].lora_rank) continue;
        const uint4(&b)[4] = b_[p];
        float (&d)[4][4] = delta[o][p];
        MultiplyPair(b[0].x, b[1].x, b[2].x, b[3].x, v, d[0]);
        MultiplyPair(b[0].y, b[1].y, b[2].y, b[3].y, v, d[1]);
        MultiplyPair(b[0].z, b[1].z, b[2].z, b[3].z, v, d[2]);
        MultiplyPair(b[0].w, b[1].w, b[2].w, b[3].w, v, d[3]);
      }
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
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      if (!__any_sync(~0u, row_[o].next >= 0)) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        int entry = __shfl_sync(~0u, row_[o].next, 8 * Quad() + 4 * e);
#pragma unroll 1
        for (; entry >= 0; entry = step.rows[entry].next) {
#pragma unroll
          for (int p = 0; p < kParts; ++p)
            AddEntry(step, targets, splits, entry, p, e, delta[o][p]);
        }
      }
    }
  }

  __device__ __forceinline__ void AddEntry(const LoraStep& step, const LoraTargets& targets,
                                           int splits, int entry, int p, int e,
                                           float (&d)[4][4]) const {
    if (piece_[p].target < 0) return;
    const LoraRow row = step.rows[entry];
    const LoraSiteEntry site = SiteOf(row.sites, targets, piece_[p].target);
    const float* v = VOf(step, splits, row.member, piece_[p].target);
    const int padded = PaddedRank(site.lora_rank);
#pragma unroll 1
    for (int r = 0; r < site.lora_rank; ++r) {
      float sum = 0.0f;
#pragma unroll 1
      for (int s = 0; s < splits; ++s) sum += v[s * padded + r];
      sum *= site.scale * row.scale;
      float b[8];
      Load8(SlabRow<__nv_bfloat16>(step, site.b[r]) + piece_[p].column, b);
#pragma unroll
      for (int i = 0; i < 8; ++i) d[i / 2][i % 2 * 2 + e] += sum * b[i];
    }
  }

  LoraRow row_[kOctets];  // of slot 8o + g
  ExpandPiece piece_[kParts];
  LoraSiteEntry site_[kParts];
  uint4 b_[kParts][4];  // rows of Bᵀ
};

}  // namespace rootstock::kernels::cuda
