// Expand of long steps in bf16 on tensor cores, for the consumers of a projection. A block takes 32
// tokens of a tile and pieces of 64 columns, a warp each; a warp walks the tokens by octets
// with the first 16 rows of Bᵀ in registers, v of the tile in shared memory, and the projection's
// values some octets ahead in a ring in shared memory, where each lane reads what it copied itself.
//
// Lanes and operands are those of expand_tile.cuh: with g = lane / 4 and q = lane % 4, a lane has
// columns 8g … 8g + 7 of each part for tokens 2q and 2q + 1 of an octet.
#pragma once

#include "kernels/cuda/copy.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/expand_tile.cuh"

namespace rootstock::kernels::cuda {

constexpr int kExpandLongWarps = 4;
constexpr int kExpandLongThreads = 32 * kExpandLongWarps;
constexpr int kExpandLongTokens = 32;  // finer than tiles: blocks' shares come out even
constexpr int kExpandLongParts = LoraTileTokens(kDecodeTokens + 1) / kExpandLongTokens;
constexpr int kExpandLongRing = 4;  // octets

// Part of a tile.
__device__ __forceinline__ LoraTile LongTilePart(const LoraStep& step, int num_tokens, int index) {
  LoraTile tile = TileAt<true>(step, num_tokens, index / kExpandLongParts);
  const int skip = index % kExpandLongParts * kExpandLongTokens;
  tile.first += skip;
  tile.count = max(0, min(kExpandLongTokens, tile.count - skip));
  return tile;
}

// A block's share of (part of a tile, group of pieces) pairs; groups run fastest, as a part's
// tables serve many.
struct BlockWalk {
  int at, end, groups;

  __device__ BlockWalk(int parts, int num_groups) : groups(num_groups) {
    const int64_t pairs = int64_t{parts} * num_groups;
    at = static_cast<int>(pairs * blockIdx.x / gridDim.x);
    end = static_cast<int>(pairs * (blockIdx.x + 1) / gridDim.x);
  }
};

template <int kParts>
struct ExpandLongShared {
  uint4 in[kExpandLongRing][2][kParts][kExpandLongThreads];
  uint2 v[kMaxLoraTargets][kExpandLongTokens * 4];  // bf16 of scale · v, ranks 4q … of a token
  LoraSiteEntry site[kMaxLoraTargets];
  uint32_t b[kMaxLoraTargets][16];  // offsets of the first rows
  LoraRow row[kExpandLongTokens];
};

// kTargets: 1 if the parts lie in one target, else a target each.
template <int kParts, int kTargets>
class ExpandLong {
  static_assert(kTargets == 1 || kTargets == kParts);
  static constexpr int Of(int p) { return kTargets == 1 ? 0 : p; }

 public:
  float delta[kParts][4][4];  // [part][pair of columns][mma's d]

  __device__ ExpandLong(const LoraStep& step, const LoraTargets& targets,
                        ExpandLongShared<kParts>& shared)
      : step_(step), targets_(targets), shared_(shared) {}

  static __device__ __forceinline__ int Group() { return threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int Quad() { return threadIdx.x % 4; }

  // The tables of a tile. All threads must call it; it waits for the kernel before.
  __device__ __forceinline__ void SetTile(const LoraTile& tile) {
    __syncthreads();
    const int i = threadIdx.x;
    int stacked = 0;
    if (i < kExpandLongTokens) {
      shared_.row[i] = i < tile.count ? step_.rows[tile.first + i] : LoraRow{};
      stacked = i < tile.count && shared_.row[i].sites != nullptr && shared_.row[i].next >= 0;
    }
    if (i / 16 < kMaxLoraTargets) {
      LoraSiteEntry site;
      if (i / 16 < targets_.count && tile.sites != nullptr) {
        site = SiteOf(tile.sites, targets_, i / 16);
      }
      if (i % 16 == 0) shared_.site[i / 16] = site;
      shared_.b[i / 16][i % 16] = i % 16 < site.lora_rank ? __ldg(site.b + i % 16) : 0;
    }
    stacked_ = __syncthreads_or(stacked);
    GridDependencyWait();
    for (int t = 0; t < targets_.count; ++t) {
#pragma unroll
      for (int at = threadIdx.x; at < kExpandLongTokens * 4; at += kExpandLongThreads) {
        shared_.v[t][at] = LoadV(shared_.row[at / 4], t, at % 4 * 4);
      }
    }
    __syncthreads();
  }

  // The first rows of Bᵀ at the pieces.
  __device__ __forceinline__ void SetPieces(const ExpandPiece (&pieces)[kParts]) {
    max_rank_ = 0;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      pieces_[p] = pieces[p];
      rank_[Of(p)] = pieces[p].target < 0 ? 0 : shared_.site[pieces[p].target].lora_rank;
      max_rank_ = max(max_rank_, rank_[Of(p)]);
      uint4 b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        b[i] = {};
        if (4 * Quad() + i < rank_[Of(p)]) {
          b[i] = LoadRow(shared_.b[pieces[p].target][4 * Quad() + i], pieces[p].column);
        }
      }
      Arrange(b, first_[p]);
    }
  }

  // The octet's sums.
  __device__ __forceinline__ void Sum(int octet) {
#pragma unroll
    for (int p = 0; p < kParts; ++p)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) delta[p][j][c] = 0.0f;
    uint2 v;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      if (p < kTargets) {
        v = shared_.v[max(0, pieces_[p].target)][octet * 32 + threadIdx.x % 32];
      }
      if (rank_[Of(p)] > 0) Multiply(first_[p], v, delta[p]);
    }
    if (max_rank_ > 16) SumRest(octet);
    if (stacked_) AddStacked(octet);
  }

  // Column i (of 8) of a part for token 2q + e.
  __device__ __forceinline__ float Delta(int p, int i, int e) const {
    return delta[p][i / 2][i % 2 * 2 + e];
  }

 private:
  __device__ __forceinline__ uint4 LoadRow(uint32_t offset, int column) const {
    return __ldg(reinterpret_cast<const uint4*>(SlabRow<__nv_bfloat16>(step_, offset) + column));
  }

  // Four rows of Bᵀ as the mma's a, for each pair of columns.
  static __device__ __forceinline__ void Arrange(const uint4 (&b)[4], uint32_t (&a)[4][4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t b0 = Word(b[0], j), b1 = Word(b[1], j);
      const uint32_t b2 = Word(b[2], j), b3 = Word(b[3], j);
      a[j][0] = __byte_perm(b0, b1, 0x5410), a[j][1] = __byte_perm(b0, b1, 0x7632);
      a[j][2] = __byte_perm(b2, b3, 0x5410), a[j][3] = __byte_perm(b2, b3, 0x7632);
    }
  }
  static __device__ __forceinline__ uint32_t Word(const uint4& x, int j) {
    return j == 0 ? x.x : j == 1 ? x.y : j == 2 ? x.z : x.w;
  }
  static __device__ __forceinline__ void Multiply(const uint32_t (&a)[4][4], const uint2& v,
                                                  float (&d)[4][4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) MmaBf16(d[j], a[j][0], a[j][1], a[j][2], a[j][3], v.x, v.y);
  }

  // scale · v[k … k + 3] of a row's first adapter.
  __device__ __forceinline__ uint2 LoadV(const LoraRow& row, int target, int k) const {
    const LoraSiteEntry& site = shared_.site[target];
    if (row.sites == nullptr || k >= PaddedRank(site.lora_rank)) return {};
    const float4 v = *reinterpret_cast<const float4*>(VOf(step_, 1, row.member, target) + k);
    const float scale = row.scale * site.scale;
    return {PackBf16(scale * v.x, scale * v.y), PackBf16(scale * v.z, scale * v.w)};
  }

  // Ranks from 16 on.
  __device__ __forceinline__ void SumRest(int octet) {
    const LoraRow& row = shared_.row[octet * 8 + Group()];
#pragma unroll 1
    for (int k = 16; k < max_rank_; k += 16) {
      uint2 v;
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        if (k >= rank_[Of(p)]) continue;
        const LoraSiteEntry& site = shared_.site[pieces_[p].target];
        uint4 b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = k + 4 * Quad() + i;
          b[i] = {};
          if (r < rank_[Of(p)]) b[i] = LoadRow(__ldg(site.b + r), pieces_[p].column);
        }
        if (p < kTargets) v = LoadV(row, pieces_[p].target, k + 4 * Quad());
        uint32_t a[4][4];
        Arrange(b, a);
        Multiply(a, v, delta[p]);
      }
    }
  }

  // The further adapters of stacked tokens: rare, so without tensor cores; v is not rounded.
  __device__ __forceinline__ void AddStacked(int octet) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const LoraRow& first = shared_.row[octet * 8 + 2 * Quad() + e];
      int entry = first.sites == nullptr ? -1 : first.next;
#pragma unroll 1
      for (; entry >= 0; entry = step_.rows[entry].next) {
#pragma unroll
        for (int p = 0; p < kParts; ++p) AddEntry(entry, p, e);
      }
    }
  }
  __device__ __forceinline__ void AddEntry(int entry, int p, int e) {
    if (pieces_[p].target < 0) return;
    const LoraRow row = step_.rows[entry];
    const LoraSiteEntry site = SiteOf(row.sites, targets_, pieces_[p].target);
    const float* v = VOf(step_, 1, row.member, pieces_[p].target);
#pragma unroll 1
    for (int r = 0; r < site.lora_rank; ++r) {
      const float scaled = site.scale * row.scale * v[r];
      float b[8];
      Load8(SlabRow<__nv_bfloat16>(step_, site.b[r]) + pieces_[p].column, b);
#pragma unroll
      for (int i = 0; i < 8; ++i) delta[p][i / 2][i % 2 * 2 + e] += scaled * b[i];
    }
  }

  const LoraStep& step_;
  const LoraTargets& targets_;
  ExpandLongShared<kParts>& shared_;
  int stacked_ = 0;  // whether a token of the tile has further adapters
  ExpandPiece pieces_[kParts];
  int rank_[kTargets];
  int max_rank_ = 0;
  uint32_t first_[kParts][4][4];  // the first 16 rows of Bᵀ
};

// The body of a kernel of kExpandLongThreads threads and any grid over all (tile, piece) pairs. Of
// `op` it calls, for a piece of columns,
//   Pieces(targets, piece, pieces): where the lane's columns of each part are,
//   At(token, piece, part): the 16 bytes to read there,
//   Finish(token, live, piece, in, added): by all lanes, with what was read of a token and what
//   LoRA
//     adds to it; to be written only if live.
template <int kParts, int kTargets, typename Op>
__device__ __forceinline__ void WalkLong(const LoraStep& step, const LoraTargets& targets,
                                         int num_tokens, int num_pieces, const Op& op) {
  __shared__ ExpandLongShared<kParts> shared;
  GridLaunchDependents();
  ExpandLong<kParts, kTargets> expand(step, targets, shared);
  const int warp = threadIdx.x / 32;
  BlockWalk walk(NumTiles<true>(step, num_tokens) * kExpandLongParts,
                 (num_pieces + kExpandLongWarps - 1) / kExpandLongWarps);
  while (walk.at < walk.end) {
    const int tile_index = walk.at / walk.groups;
    const LoraTile tile = LongTilePart(step, num_tokens, tile_index);
    expand.SetTile(tile);
    const int group = walk.at - tile_index * walk.groups;
    const int octets = (tile.count + 7) / 8;
    const int run = min(walk.end - walk.at, walk.groups - group);
    walk.at += run;
    const int first = group * kExpandLongWarps + warp;
    if (first >= num_pieces || tile.count == 0) continue;
    const int pieces_here =
        min(run, (num_pieces - first + kExpandLongWarps - 1) / kExpandLongWarps);
    const int steps = pieces_here * octets;
    const auto token = [&](int octet, int e) {
      return shared.row[min(octet * 8 + 2 * static_cast<int>(threadIdx.x % 4) + e, tile.count - 1)]
          .token;
    };
    // The next step to copy.
    int copy_step = 0, copy_octet = 0, copy_piece = first;
    const auto copy = [&] {
      if (copy_step < steps) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int of = token(copy_octet, e);
#pragma unroll
          for (int p = 0; p < kParts; ++p) {
            CopyAsync16(SharedAddress(&shared.in[copy_step % kExpandLongRing][e][p][threadIdx.x]),
                        op.At(of, copy_piece, p), true);
          }
        }
        if (++copy_octet == octets) copy_octet = 0, copy_piece += kExpandLongWarps;
        ++copy_step;
      }
      CommitCopies();
    };
    for (int i = 0; i < kExpandLongRing - 1; ++i) copy();
    int at = 0;
    for (int piece = first, i = 0; i < pieces_here; ++i, piece += kExpandLongWarps) {
      ExpandPiece pieces[kParts];
      op.Pieces(targets, piece, pieces);
      expand.SetPieces(pieces);
      for (int octet = 0; octet < octets; ++octet, ++at) {
        copy();
        expand.Sum(octet);
        WaitForCopies<kExpandLongRing - 1>();
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          uint4 in[kParts];
          float added[kParts][8];
#pragma unroll
          for (int p = 0; p < kParts; ++p) {
            in[p] = shared.in[at % kExpandLongRing][e][p][threadIdx.x];
#pragma unroll
            for (int c = 0; c < 8; ++c) added[p][c] = expand.Delta(p, c, e);
          }
          const bool live = octet * 8 + 2 * static_cast<int>(threadIdx.x % 4) + e < tile.count;
          op.Finish(token(octet, e), live, piece, in, added);
        }
      }
    }
  }
  if (blockIdx.x == 0) GridDependencyWait();
}

}  // namespace rootstock::kernels::cuda
