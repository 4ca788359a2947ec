// Expand of long steps in bf16 on tensor cores, for the consumers of a projection. A block takes a
// tile of tokens, 16 a warp, and streams pieces of 64 columns through two stages in shared memory:
// the projection's values, and the rows of Bᵀ there, which its warps share. v of the tile stays in
// registers.
//
// With g = lane / 4 and q = lane % 4, a lane has columns 8n + 2q and 8n + 2q + 1 of each part for
// its warp's tokens g and g + 8: in the mma the rows are tokens and the columns are columns.
#pragma once

#include "kernels/cuda/copy.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/lora_tiles.cuh"

namespace rootstock::kernels::cuda {

constexpr int kStreamThreads = 128;
constexpr int kStreamTokens = 64;  // of a tile
constexpr int kStreamRanks = 64;   // of Bᵀ in a stage
constexpr int kStreamBlocks = 3;   // an SM
static_assert(kStreamTokens == LoraTileTokens(kDecodeTokens + 1));

template <int kParts>
struct StreamStage {
  uint4 in[kParts][kStreamTokens][9];  // 64 columns and a pad that spreads the banks
  uint4 b[kParts][kStreamRanks][8];    // 64 columns; chunk c of row r lies at c ^ (r % 8)
};

template <int kParts>
struct StreamShared {
  StreamStage<kParts> stage[2];
  LoraSiteEntry site[kMaxLoraTargets];
  uint32_t b[kMaxLoraTargets][kStreamRanks];  // offsets of the first rows
  int token[kStreamTokens];
};

// What a lane has of a piece: [part][columns 8n …][mma's d].
template <int kParts>
using StreamSums = float[kParts][8][4];

__device__ __forceinline__ void LoadTransposed(uint32_t from, uint32_t (&x)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}

// kTargets: 1 if the parts of a piece lie in one target, else a target each.
template <int kParts, int kTargets>
class ExpandStream {
  static_assert(kTargets == 1 || kTargets == kParts);
  static constexpr int Of(int p) { return kTargets == 1 ? 0 : p; }

 public:
  using Shared = StreamShared<kParts>;

  __device__ ExpandStream(const LoraStep& step, const LoraTargets& targets, Shared& shared)
      : step_(step), targets_(targets), shared_(shared) {}

  static __device__ __forceinline__ int Quad() { return threadIdx.x % 4; }
  // Of the tile: this lane's first token; the other is 8 further.
  static __device__ __forceinline__ int Slot() {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  }

  // The tables of a tile. All threads must call it; it waits for the kernel before.
  __device__ __forceinline__ void SetTile(const LoraTile& tile) {
    __syncthreads();
    tile_ = tile;
    const int i = threadIdx.x;
    if (i < kStreamTokens) {
      shared_.token[i] = step_.rows[tile.first + min(i, tile.count - 1)].token;
    }
    for (int t = i / 64; t < kMaxLoraTargets; t += kStreamThreads / 64) {
      LoraSiteEntry site;
      if (t < targets_.count && tile.sites != nullptr) site = SiteOf(tile.sites, targets_, t);
      if (i % 64 == 0) shared_.site[t] = site;
      shared_.b[t][i % 64] = i % 64 < site.lora_rank ? __ldg(site.b + i % 64) : 0;
    }
    int stacked = 0;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const LoraRow row = step_.rows[tile.first + min(Slot() + 8 * e, tile.count - 1)];
      member_[e] = row.member;
      scale_[e] = row.scale;
      next_[e] = row.sites == nullptr ? -1 : row.next;
      stacked |= next_[e] >= 0;
    }
    stacked_ = __syncthreads_or(stacked);
#pragma unroll
    for (int t = 0; t < kTargets; ++t) v_target_[t] = -1, v_chunk_[t] = -1;
    GridDependencyWait();
  }

  // Chunks of kStreamRanks of the pieces, one at least.
  __device__ __forceinline__ int Chunks(const ExpandPiece (&pieces)[kParts]) const {
    int rank = 1;
#pragma unroll
    for (int p = 0; p < kTargets; ++p) rank = max(rank, RankOf(pieces[p]));
    return (rank + kStreamRanks - 1) / kStreamRanks;
  }

  // This thread's part of Bᵀ of a chunk; zeros up to a multiple of 16 ranks.
  __device__ __forceinline__ void CopyB(int stage, const ExpandPiece (&pieces)[kParts],
                                        int chunk) const {
    const int at = threadIdx.x % 8;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const int rank = RankOf(pieces[p]) - chunk * kStreamRanks;
#pragma unroll
      for (int i = 0; i < kStreamRanks; i += kStreamThreads / 8) {
        const int r = threadIdx.x / 8 + i;
        if (r >= PaddedRank(max(rank, 0))) continue;
        uint32_t offset = 0;
        if (r < rank) {
          offset = chunk == 0 ? shared_.b[pieces[p].target][r]
                              : __ldg(shared_.site[pieces[p].target].b + chunk * kStreamRanks + r);
        }
        const auto* row = SlabRow<__nv_bfloat16>(step_, offset) + pieces[p].column + 8 * at;
        CopyAsync16(SharedAddress(&shared_.stage[stage].b[p][r][at ^ (r % 8)]), row, r < rank);
      }
    }
  }

  // sums += those of a chunk of ranks.
  __device__ __forceinline__ void Multiply(int stage, const ExpandPiece (&pieces)[kParts],
                                           int chunk, StreamSums<kParts>& sums) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const int rank = RankOf(pieces[p]) - chunk * kStreamRanks;
      if (rank <= 0) continue;
      if (p < kTargets) SetV(p, pieces[p].target, chunk, rank);
#pragma unroll
      for (int h = 0; h < kStreamRanks / 16; ++h) {
        if (16 * h >= rank) break;
        const int r = 16 * h + lane % 16;
        const uint32_t row = SharedAddress(&shared_.stage[stage].b[p][r][0]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          uint32_t b[4];
          LoadTransposed(row + ((2 * j + lane / 16) ^ (r % 8)) * 16, b);
          const uint32_t (&a)[4] = v_[Of(p)][h];
          MmaBf16(sums[p][2 * j], a[0], a[1], a[2], a[3], b[0], b[1]);
          MmaBf16(sums[p][2 * j + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
        }
      }
    }
  }

  // The further adapters of stacked tokens: rare, so without tensor cores; v is not rounded.
  __device__ __forceinline__ void AddStacked(const ExpandPiece (&pieces)[kParts],
                                             StreamSums<kParts>& sums) const {
    if (!stacked_) return;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll 1
      for (int entry = next_[e]; entry >= 0; entry = step_.rows[entry].next) {
        const LoraRow row = step_.rows[entry];
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          if (pieces[p].target < 0) continue;
          const LoraSiteEntry site = SiteOf(row.sites, targets_, pieces[p].target);
          const float* v = VOf(step_, 1, row.member, pieces[p].target);
#pragma unroll 1
          for (int r = 0; r < site.lora_rank; ++r) {
            const float scaled = site.scale * row.scale * v[r];
            const auto* b =
                SlabRow<__nv_bfloat16>(step_, site.b[r]) + pieces[p].column + 2 * Quad();
#pragma unroll
            for (int n = 0; n < 8; ++n) {
              const float2 x = UnpackBf16(*reinterpret_cast<const uint32_t*>(b + 8 * n));
              sums[p][n][2 * e] += scaled * x.x;
              sums[p][n][2 * e + 1] += scaled * x.y;
            }
          }
        }
      }
    }
  }

 private:
  __device__ __forceinline__ int RankOf(const ExpandPiece& piece) const {
    return piece.target < 0 ? 0 : shared_.site[piece.target].lora_rank;
  }

  // scale · v of a chunk as the mma's a.
  __device__ __forceinline__ void SetV(int t, int target, int chunk, int rank) {
    if (v_target_[t] == target && v_chunk_[t] == chunk) return;
    v_target_[t] = target, v_chunk_[t] = chunk;
    const float site_scale = shared_.site[target].scale;
#pragma unroll
    for (int h = 0; h < kStreamRanks / 16; ++h) {
      if (16 * h >= rank) break;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float scale = scale_[e] * site_scale;
        const float* v = VOf(step_, 1, member_[e], target) + chunk * kStreamRanks + 16 * h;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float2 x = *reinterpret_cast<const float2*>(v + 8 * k + 2 * Quad());
          v_[t][h][2 * k + e] = PackBf16(scale * x.x, scale * x.y);
        }
      }
    }
  }

  const LoraStep& step_;
  const LoraTargets& targets_;
  Shared& shared_;
  LoraTile tile_;
  int member_[2], next_[2];
  float scale_[2];
  int stacked_ = 0;
  int v_target_[kTargets], v_chunk_[kTargets];
  uint32_t v_[kTargets][kStreamRanks / 16][4];
};

}  // namespace rootstock::kernels::cuda
