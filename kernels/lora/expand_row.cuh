// Expand of one token by a block or a cluster on tensor cores (bf16), with the bits of
// expand_tile.cuh: a warp takes four pieces of 64 columns, all 8 columns of its mma are the one
// token, and each lane keeps 8 columns of the piece that its quad stands for.
#pragma once

#include "kernels/lora/expand_tile.cuh"

namespace rootstock::kernels::cuda {

class ExpandRow {
 public:
  static constexpr int kPieces = 4;
  static constexpr int kColumns = 64 * kPieces;  // of a warp

  // The lane's 8 columns of the row; warp: of those that share the row.
  static __device__ __forceinline__ int Column(int warp) {
    return warp * kColumns + Quad() * 64 + Group() * 8;
  }

  // Of the target 0, which has all `n` columns, and the token at place `slot` in the order of the
  // rows. This and LoadFirst read what no kernel of the step writes.
  __device__ __forceinline__ ExpandRow(const LoraStep& step, const LoraTargets& targets, int n,
                                       int slot, int warp)
      : row_(LoadKept(step.rows + slot)), warp_(warp), n_(n) {
    if (row_.sites != nullptr) site_ = LoadKept(&SiteOf(row_.sites, targets, 0));
  }
  __device__ __forceinline__ int token() const { return row_.token; }

  // The first 16 rows of Bᵀ; above those the first 64 of one piece, and all go to the second cache.
  __device__ __forceinline__ void LoadFirst(const LoraStep& step) {
    if (site_.lora_rank > 16) return LoadFirstOfMany(step);
    uint32_t offset[4];
    LoadOffsets(0, offset);
#pragma unroll
    for (int p = 0; p < kPieces; ++p) LoadRows(step, p, 0, offset, b_[p]);
  }

  // What LoRA adds at the lane's columns, of v as Shrink left it: call it after the wait.
  __device__ __forceinline__ void Sum(const LoraStep& step, const LoraTargets& targets, int splits,
                                      float (&out)[8]) {
    if (site_.lora_rank <= 16) {
      if (site_.lora_rank > 0) {
        const uint2 v = LoadV(step, splits, 0);
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          float d[4][4] = {};
          Multiply(b_[p], v, d);
          Keep(p, d, out);
        }
      }
    } else {
      SumMany(step, splits, out);
    }
    AddStacked(step, targets, splits, out);
  }

 private:
  static constexpr int kHeldRanks = 64;

  __device__ __forceinline__ void LoadFirstOfMany(const LoraStep& step) {
    const int lane = threadIdx.x % 32;
    const int column = warp_ * kColumns + lane % kPieces * 64;
#pragma unroll 1
    for (int r = lane / kPieces; r < site_.lora_rank; r += 32 / kPieces) {
      if (column < n_) {
        PrefetchL2(SlabRow<__nv_bfloat16>(step, LoadKept(site_.b + r)) + column);
      }
    }
    LoadHeldOffsets(0);
    LoadPiece(step, 0, 0);
  }

  // Lane l has those of rows first + l and first + l + 32.
  __device__ __forceinline__ void LoadHeldOffsets(int first) {
#pragma unroll
    for (int i = 0; i < kHeldRanks / 32; ++i) {
      const int r = first + 32 * i + static_cast<int>(threadIdx.x % 32);
      offset_[i] = r < site_.lora_rank ? LoadKept(site_.b + r) : 0;
    }
  }

  // Rows first … first + 63 of a piece to b_, 16 an entry.
  __device__ __forceinline__ void LoadPiece(const LoraStep& step, int piece, int first) {
#pragma unroll
    for (int i = 0; i < kHeldRanks / 16; ++i) {
      uint32_t offset[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        offset[j] = __shfl_sync(~0u, offset_[i / 2], i % 2 * 16 + 4 * Quad() + j);
      }
      LoadRows(step, piece, first + 16 * i, offset, b_[i]);
    }
  }

  // A piece at a time, 64 of its rows on their way together: one after another they take long.
  __device__ __forceinline__ void SumMany(const LoraStep& step, int splits, float (&out)[8]) {
    const bool one = site_.lora_rank <= kHeldRanks;
    uint32_t v = 0;
#pragma unroll 1
    for (int p = 0; p < kPieces; ++p) {
      float d[4][4] = {};
#pragma unroll 1
      for (int first = 0; first < site_.lora_rank; first += kHeldRanks) {
        if (p + first > 0) {
          if (!one) LoadHeldOffsets(first);
          LoadPiece(step, p, first);
        }
        if (p == 0 || !one) v = LoadHeldV(step, splits, first);
#pragma unroll
        for (int i = 0; i < kHeldRanks / 16; ++i) {
          const uint2 of = {__shfl_sync(~0u, v, 8 * i + 2 * Quad()),
                            __shfl_sync(~0u, v, 8 * i + 2 * Quad() + 1)};
          if (first + 16 * i < site_.lora_rank) Multiply(b_[i], of, d);
        }
      }
      Keep(p, d, out);
    }
  }

  // scale · v of ranks first + 2l and first + 2l + 1 in lane l, in bf16.
  __device__ __forceinline__ uint32_t LoadHeldV(const LoraStep& step, int splits, int first) const {
    constexpr int kBatch = 4;
    const int rank = first + 2 * static_cast<int>(threadIdx.x % 32);
    const int padded = PaddedRank(site_.lora_rank);
    const float* from = VOf(step, splits, row_.member, 0) + rank;
    float2 sum = {};
#pragma unroll 1
    for (int s = 0; s < splits; s += kBatch) {
      float2 part[kBatch] = {};
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (rank < padded && s + i < splits) {
          part[i] = *reinterpret_cast<const float2*>(from + (s + i) * padded);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) sum.x += part[i].x, sum.y += part[i].y;
    }
    const float scale = site_.scale * row_.scale;
    return PackBf16(scale * sum.x, scale * sum.y);
  }
  static __device__ __forceinline__ void Keep(int p, const float (&d)[4][4], float (&out)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = Quad() == p ? d[i / 2][i % 2 * 2] : out[i];
  }

  static __device__ __forceinline__ int Group() { return threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int Quad() { return threadIdx.x % 4; }

  // Of rows k + 4q … k + 4q + 3.
  __device__ __forceinline__ void LoadOffsets(int k, uint32_t (&offset)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = k + 4 * Quad() + i;
      offset[i] = r < site_.lora_rank ? LoadKept(site_.b + r) : 0;
    }
  }
  __device__ __forceinline__ void LoadRows(const LoraStep& step, int p, int k,
                                           const uint32_t (&offset)[4], uint4 (&b)[4]) const {
    const int column = warp_ * kColumns + Group() * 8 + p * 64;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      b[i] = {};
      if (k + 4 * Quad() + i < site_.lora_rank && column < n_) {
        b[i] = LoadConstant16(SlabRow<__nv_bfloat16>(step, offset[i]) + column);
      }
    }
  }

  // scale · v[k + 4q … k + 4q + 3], as the mma's b. Eight lanes want the same: each loads one of
  // the splits, so that all are on their way together.
  __device__ __forceinline__ uint2 LoadV(const LoraStep& step, int splits, int k) const {
    constexpr int kBatch = 8;
    const float* from = VOf(step, splits, row_.member, 0) + k + 4 * Quad();
    const int padded = PaddedRank(site_.lora_rank);
    float4 sum = {};
#pragma unroll 1
    for (int first = 0; first < splits; first += kBatch) {
      float4 part = {};
      if (first + Group() < splits) {
        part = *reinterpret_cast<const float4*>(from + (first + Group()) * padded);
      }
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        if (first + s < splits) {
          const int lane = 4 * s + Quad();
          sum.x += __shfl_sync(~0u, part.x, lane), sum.y += __shfl_sync(~0u, part.y, lane);
          sum.z += __shfl_sync(~0u, part.z, lane), sum.w += __shfl_sync(~0u, part.w, lane);
        }
      }
    }
    const float scale = site_.scale * row_.scale;
    return {PackBf16(scale * sum.x, scale * sum.y), PackBf16(scale * sum.z, scale * sum.w)};
  }

  static __device__ __forceinline__ void Multiply(const uint4 (&b)[4], const uint2& v,
                                                  float (&d)[4][4]) {
    MultiplyColumnPair(b[0].x, b[1].x, b[2].x, b[3].x, v, d[0]);
    MultiplyColumnPair(b[0].y, b[1].y, b[2].y, b[3].y, v, d[1]);
    MultiplyColumnPair(b[0].z, b[1].z, b[2].z, b[3].z, v, d[2]);
    MultiplyColumnPair(b[0].w, b[1].w, b[2].w, b[3].w, v, d[3]);
  }

  __device__ __forceinline__ void AddStacked(const LoraStep& step, const LoraTargets& targets,
                                             int splits, float (&out)[8]) const {
    const int column = Column(warp_);
    if (column >= n_) return;
#pragma unroll 1
    for (int entry = row_.next; entry >= 0; entry = step.rows[entry].next) {
      const LoraRow& row = step.rows[entry];
      const Columns8 sum = ExpandEntry(step.slab, &SiteOf(row.sites, targets, 0), row.scale,
                                       VOf(step, splits, row.member, 0), splits, column);
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] += sum.x[i];
    }
  }

  LoraRow row_;
  LoraSiteEntry site_ = {};
  int warp_, n_;
  uint4 b_[kPieces][4];  // rows of Bᵀ: of each piece; above 16 ranks of one
  uint32_t offset_[kHeldRanks / 32];
};

}  // namespace rootstock::kernels::cuda
