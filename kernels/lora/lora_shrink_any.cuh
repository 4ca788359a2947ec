// Shrink of long steps on GPUs that are not sm_90: a block takes 32 members of a group and its
// eight warps share out the inputs, so that x is read once for up to 48 ranks of all targets and
// many loads are under way at the same time. Sums of the warps are added in the order of the
// inputs.
#pragma once

#include "kernels/lora/lora_shrink.cuh"
#include "kernels/lora/lora_shrink_tiles.cuh"

namespace rootstock::kernels::cuda {

constexpr int kAnyMembers = 32;  // of a tile
constexpr int kAnyBlocks = 6;    // of 8 ranks: what one pass over x serves
constexpr int kAnyAhead = 1;     // steps of 32 inputs; two do not fit the registers
constexpr int kAnySumStride = 8 * kAnyBlocks + 4;  // floats; the pad spreads the banks
constexpr int kAnySharedBytes = kShrinkWarps * kAnyMembers * kAnySumStride * 4;

using AnySums = float[kAnyMembers / 16][kAnyBlocks][4];

// Rows that a lane reads: of A, one of each block of 8 ranks; of x, one of each 8 members. Some
// valid row where there is none, so that loads need no branch: such sums go nowhere.
struct AnyRows {
  const __nv_bfloat16* a[kAnyBlocks];
  const __nv_bfloat16* x[kAnyMembers / 8];

  __device__ __forceinline__ void SetRanks(const LoraStep& step, const LoraTargets& targets,
                                           const LoraSiteEntry* sites, const RankBlocks& ranks,
                                           int first) {
#pragma unroll
    for (int b = 0; b < kAnyBlocks; ++b) {
      const RankBlock block = ranks.At(min(first + b, ranks.count - 1));
      const int r = min(block.first + static_cast<int>(threadIdx.x) % 32 / 4, block.lora_rank - 1);
      a[b] = SlabRow<__nv_bfloat16>(step, __ldg(SiteOf(sites, targets, block.target).a + r));
    }
  }
  __device__ __forceinline__ void SetMembers(const LoraStep& step, const LongTile& tile,
                                             const __nv_bfloat16* from, int width) {
#pragma unroll
    for (int m = 0; m < kAnyMembers / 8; ++m) {
      const int member = min(m * 8 + static_cast<int>(threadIdx.x) % 32 / 4, tile.members - 1);
      x[m] = from + static_cast<size_t>(step.tokens[tile.member + member]) * width;
    }
  }

  // sums += the products of inputs [begin, end). The whole warp goes on together, as its products
  // want it: what lies beyond `end` is zero.
  __device__ __forceinline__ void Multiply(int begin, int end, AnySums& sums) const {
    uint4 as[kAnyAhead + 1][kAnyBlocks];
    uint4 xs[kAnyAhead + 1][kAnyMembers / 16][2];
    const auto load = [&](int slot, int k) {
#pragma unroll
      for (int m = 0; m < kAnyMembers / 8; ++m) xs[slot][m / 2][m % 2] = LoadX(x[m], k, end);
#pragma unroll
      for (int b = 0; b < kAnyBlocks; ++b) as[slot][b] = LoadX(a[b], k, end);
    };
    const int lane = 8 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < kAnyAhead; ++i) load(i, begin + lane + 32 * i);
#pragma unroll 1
    for (int k = begin; k < end; k += 32 * (kAnyAhead + 1)) {
#pragma unroll
      for (int i = 0; i <= kAnyAhead; ++i) {
        load((i + kAnyAhead) % (kAnyAhead + 1), k + lane + 32 * (i + kAnyAhead));
#pragma unroll
        for (int t = 0; t < kAnyMembers / 16; ++t)
#pragma unroll
          for (int b = 0; b < kAnyBlocks; ++b) AddInputs(xs[i][t], as[i][b], sums[t][b]);
      }
    }
  }
};

// parts [warps][members][ranks]: each warp's sums; then their total to v, four ranks a thread.
__device__ __forceinline__ void StoreAny(const LoraStep& step, const LongTile& tile,
                                         const RankBlocks& ranks, int first, const AnySums& sums,
                                         float* parts) {
  constexpr int kPart = kAnyMembers * kAnySumStride;
  constexpr int kQuads = 2 * kAnyBlocks;
  const int lane = threadIdx.x % 32;
  float* mine = parts + threadIdx.x / 32 * kPart + lane / 4 * kAnySumStride + lane % 4 * 2;
#pragma unroll
  for (int t = 0; t < kAnyMembers / 16; ++t)
#pragma unroll
    for (int b = 0; b < kAnyBlocks; ++b) {
      float* to = mine + t * 16 * kAnySumStride + b * 8;
      *reinterpret_cast<float2*>(to) = {sums[t][b][0], sums[t][b][1]};
      *reinterpret_cast<float2*>(to + 8 * kAnySumStride) = {sums[t][b][2], sums[t][b][3]};
    }
  __syncthreads();
  for (int i = threadIdx.x; i < tile.members * kQuads; i += kShrinkThreads) {
    const RankBlock block = ranks.At(first + i % kQuads / 2);
    if (block.target < 0) continue;
    float4 sum = {};
#pragma unroll
    for (int w = 0; w < kShrinkWarps; ++w) {
      const float* part = parts + w * kPart + i / kQuads * kAnySumStride + i % kQuads * 4;
      const float4 add = *reinterpret_cast<const float4*>(part);
      sum.x += add.x, sum.y += add.y, sum.z += add.z, sum.w += add.w;
    }
    StoreQuad(step, block, tile.member + i / kQuads, i % kQuads, sum);
  }
  __syncthreads();
}

// grid [tiles]; block: kShrinkThreads. `slice`: inputs of a warp, a multiple of 32.
__global__ void __launch_bounds__(kShrinkThreads, 1)
    ShrinkAnyKernel(LoraStep step, LoraTargets targets, const __nv_bfloat16* x, int slice) {
  extern __shared__ float4 any_shared[];
  GridLaunchDependents();
  const LongTile tile = LongTileAt<kAnyMembers>(step, blockIdx.x);
  if (tile.members > 0) {
    const RankBlocks ranks(tile.sites, targets);
    const int begin = static_cast<int>(threadIdx.x) / 32 * slice;
    const int end = min(targets.in, begin + slice);
    AnyRows rows;
    rows.SetMembers(step, tile, x, targets.in);
    GridDependencyWait();
    for (int first = 0; first < ranks.count; first += kAnyBlocks) {
      rows.SetRanks(step, targets, tile.sites, ranks, first);
      AnySums sums = {};
      rows.Multiply(begin, end, sums);
      StoreAny(step, tile, ranks, first, sums, reinterpret_cast<float*>(any_shared));
    }
  }
  if (blockIdx.x == 0) GridDependencyWait();
}

}  // namespace rootstock::kernels::cuda
