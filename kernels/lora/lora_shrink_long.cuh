// Shrink of long steps on sm_90a: a cluster takes 128 members of a group, its blocks share out the
// inputs, and each multiplies by warpgroup products, so that what the members share of A comes
// from the second cache once for 128 of them and x once for up to 192 ranks of all targets. Rows of
// both come by asynchronous copies in the layout with 128-byte swizzle. The blocks' sums are added
// in the order of the inputs. Beside a GEMM, on few SMs, a block is two such workers side by side,
// each with tiles of its own and all their inputs.
#pragma once

#include <type_traits>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/lora_shrink_worker.cuh"

namespace rootstock::kernels::cuda {

// kRanks: of a pass. A stage holds [members][64 inputs] of x, then [ranks][64 inputs] of A.
template <int kRanks>
struct LongPass {
  static constexpr int kOf = kRanks < 64 ? kRanks : 64;  // ranks of a product
  static constexpr int kParts = kRanks / kOf;
  static constexpr int kStageBytes = (kLongMembers + kRanks) * 128;
  static constexpr int kStages = kLongRingBytes / kStageBytes;
  static constexpr int kSumStride = kRanks + 8;  // floats; the pad spreads the banks
  static_assert(kStages >= 2 && kLongMembers * kSumStride * 4 <= kLongRingBytes);

  const __nv_bfloat16* in;  // rows of `width`
  size_t width;
  const std::byte* slab;
  const LongRows& rows;
  uint32_t ring, to;  // to: this thread's place in a stage

  __device__ __forceinline__ LongPass(const __nv_bfloat16* from, int inputs, const std::byte* pages,
                                      const LongRows& of, uint32_t shared)
      : in(from), width(inputs), slab(pages), rows(of), ring(shared) {
    const int row = LongThread() / 8;
    to = row * 128 + ((LongThread() ^ row) % 8) * 16;
  }

  // This thread's 16 bytes of every 32nd row, of the inputs from `k` on; zeros beyond `end` and
  // where there is no row, so that no branch keeps one copy waiting for another.
  __device__ __forceinline__ void Copy(int stage, int k, int end) const {
    const int at = k + 8 * (LongThread() % 8);
    const bool inside = at < end;
    CopyX(stage, inside ? at : 0, inside);
    CopyA(stage, inside ? at : 0, inside);
  }
  __device__ __forceinline__ void CopyX(int stage, int at, bool inside) const {
    const uint32_t base = ring + stage * kStageBytes + to;
    uint32_t from[kLongMembers / kLongRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kLongMembers / kLongRowsAtOnce; ++i) {
      from[i] = rows.x[LongThread() / 8 + i * kLongRowsAtOnce];
    }
#pragma unroll
    for (int i = 0; i < kLongMembers / kLongRowsAtOnce; ++i) {
      const bool live = inside && from[i] != kNoRow;
      CopyAsync16(base + i * kLongRowsAtOnce * 128, in + (live ? from[i] : 0) * width + at, live);
    }
  }
  __device__ __forceinline__ void CopyA(int stage, int at, bool inside) const {
    constexpr int kCopies = (kRanks + kLongRowsAtOnce - 1) / kLongRowsAtOnce;
    const uint32_t base = ring + stage * kStageBytes + kLongMembers * 128 + to;
    uint32_t from[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) from[i] = rows.a[LongThread() / 8 + i * kLongRowsAtOnce];
    if (kRanks % kLongRowsAtOnce != 0 && LongThread() / 8 >= kRanks) return;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const bool live = inside && from[i] != kNoRow;
      const std::byte* row = slab + (live ? from[i] : 0) * kRowUnit + at * 2;
      CopyAsync16(base + i * kLongRowsAtOnce * 128, row, live);
    }
  }

  // sums += the products of a stage. What was not copied there reaches no sum that is kept: a
  // member's row meets a rank's row alone.
  __device__ __forceinline__ void Multiply(int stage, float (&sums)[kParts][kOf / 2]) const {
    const uint32_t tokens = ring + stage * kStageBytes + LongThread() / 128 * (64 * 128);
    const uint32_t ranks = ring + stage * kStageBytes + kLongMembers * 128;
    MmaFence();
#pragma unroll
    for (int k = 0; k < kLongStep / 16; ++k)
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        Mma<kOf>::Run(sums[p], MatrixDescriptor(tokens + k * 32),
                      MatrixDescriptor(ranks + p * kOf * 128 + k * 32));
      }
    MmaCommit();
  }

  // The sums of inputs [begin, end).
  __device__ __forceinline__ void Run(int begin, int end, float (&sums)[kParts][kOf / 2]) const {
    const int steps = (end - begin + kLongStep - 1) / kLongStep;
    // With three stages the copies into one start beside the products of the next; two are both
    // filled, as copies of one alone are too little under way.
    constexpr int kAhead = kStages > 2 ? kStages - 1 : kStages;
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      if (s < steps) Copy(s, begin + s * kLongStep, end);
      CommitCopies();
    }
    int stage = 0;
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
      WaitForCopies<kAhead - 1>();
      ProxyFence();
      LongSync();
      Multiply(stage, sums);
      if constexpr (kAhead == kStages) {
        MmaWait<0>();
        LongSync();
      }
      const int next = s + kAhead;
      if (next < steps) {
        const int to_stage = stage + kAhead - (stage + kAhead >= kStages ? kStages : 0);
        Copy(to_stage, begin + next * kLongStep, end);
      }
      CommitCopies();
      MmaWait<0>();
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    WaitForCopies<0>();
    LongSync();
  }

  // The block's sums [member][kSumStride], where the ring was.
  static __device__ __forceinline__ void Put(const float (&sums)[kParts][kOf / 2], float* parts) {
    const int row = LongThread() / 32 * 16 + LongThread() % 32 / 4;
    float* to = parts + row * kSumStride + LongThread() % 4 * 2;
#pragma unroll
    for (int p = 0; p < kParts; ++p)
#pragma unroll
      for (int j = 0; j < kOf / 8; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float2 pair = {sums[p][4 * j + 2 * h], sums[p][4 * j + 2 * h + 1]};
          *reinterpret_cast<float2*>(to + h * 8 * kSumStride + p * kOf + j * 8) = pair;
        }
  }
};

// This block's share of the members, summed over the cluster in its order.
template <int kRanks, int kCluster>
__device__ __forceinline__ void StoreLong(const LoraStep& step, const LongTile& tile,
                                          const RankBlocks& ranks, int first, uint32_t parts) {
  constexpr int kQuads = kRanks / 4;
  constexpr int kShare = kLongMembers / kCluster;
  constexpr int kStride = LongPass<kRanks>::kSumStride * 4;
  const int from = blockIdx.x % kCluster * kShare;
  const int quads = min(kShare, tile.members - from) * kQuads;
#pragma unroll 2
  for (int i = LongThread(); i < quads; i += kLongThreads) {
    const int member = from + i / kQuads;
    const uint32_t part = parts + member * kStride + i % kQuads * 16;
    float add[kCluster][4];
#pragma unroll
    for (int c = 0; c < kCluster; ++c) {
      kCluster == 1 ? LoadShared(part, add[c]) : LoadRemote(RemoteAddress(part, c), add[c]);
    }
    float4 sum = {};
#pragma unroll
    for (int c = 0; c < kCluster; ++c) {
      sum.x += add[c][0], sum.y += add[c][1], sum.z += add[c][2], sum.w += add[c][3];
    }
    const RankBlock block = ranks.At(first + i % kQuads / 2);
    if (block.target >= 0) StoreQuad(step, block, tile.member + member, i % kQuads, sum);
  }
}

template <int kRanks>
__device__ __forceinline__ void StoreLong(const LoraStep& step, const LongTile& tile,
                                          const RankBlocks& ranks, int first, int cluster,
                                          uint32_t parts) {
  if (cluster == 8) return StoreLong<kRanks, 8>(step, tile, ranks, first, parts);
  if (cluster == 4) return StoreLong<kRanks, 4>(step, tile, ranks, first, parts);
  if (cluster == 2) return StoreLong<kRanks, 2>(step, tile, ranks, first, parts);
  StoreLong<kRanks, 1>(step, tile, ranks, first, parts);
}

// Of the threads of all blocks that share a tile.
__device__ __forceinline__ void SyncSums(int cluster) {
  if (cluster == 1) return LongSync();
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// kRanks ranks of a tile from block `first` on. Waits for the kernel before, which wrote x; then
// lets the next one start.
template <int kRanks>
__device__ __forceinline__ void ShrinkPass(const LoraStep& step, const LoraTargets& targets,
                                           const LongTile& tile, const RankBlocks& ranks, int first,
                                           const __nv_bfloat16* x, int cluster, int slice,
                                           float4* ring, LongRows& rows) {
  using Pass = LongPass<kRanks>;
  const int begin = static_cast<int>(blockIdx.x % cluster) * slice;
  const int end = min(targets.in, begin + slice);
  float sums[Pass::kParts][Pass::kOf / 2] = {};
  rows.Set(step, targets, tile, ranks, first);
  GridDependencyWait();
  GridLaunchDependents();
  Pass(x, targets.in, step.slab, rows, SharedAddress(ring)).Run(begin, end, sums);
  float* parts = reinterpret_cast<float*>(ring);
  Pass::Put(sums, parts);
  SyncSums(cluster);
  StoreLong<kRanks>(step, tile, ranks, first, cluster, SharedAddress(parts));
  // What a block read of the others' it has: the ring may be filled again.
  if (cluster == 1) return LongSync();
  ClusterArrive();
  ClusterWait();
}

// The passes of a tile.
__device__ __forceinline__ void ShrinkTile(const LoraStep& step, const LoraTargets& targets,
                                           const LongTile& tile, const __nv_bfloat16* x,
                                           int cluster, int slice, float4* ring, LongRows& rows) {
  const RankBlocks ranks(tile.sites, targets);
  int first = 0;
  const auto pass = [&](auto of) {
    ShrinkPass<decltype(of)::value>(step, targets, tile, ranks, first, x, cluster, slice, ring,
                                    rows);
    first += decltype(of)::value / 8;
  };
  while (first < ranks.count) {
    const int left = ranks.count - first;
    if (left <= 2) {
      pass(std::integral_constant<int, 16>());
    } else if (left <= 8) {
      pass(std::integral_constant<int, 64>());
    } else if (left <= 16) {
      pass(std::integral_constant<int, 128>());
    } else {
      pass(std::integral_constant<int, 192>());
    }
  }
}

// grid [cluster · tiles], a worker a block, slice: LongSlice. Or any grid of blocks of
// kLongWorkers, which lets the next kernel start when those before have ended; cluster 1, slice:
// all inputs.
__global__ void __launch_bounds__(kLongWorkers* kLongThreads, 1)
    ShrinkLongKernel(LoraStep step, LoraTargets targets, const __nv_bfloat16* x, int cluster,
                     int slice) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) float4 long_shared[];
  const bool beside = blockDim.x > kLongThreads;
  if (!beside) GridLaunchDependents();
  const int worker = threadIdx.x / kLongThreads;
  const int workers = blockDim.x / kLongThreads;
  float4* ring = long_shared + worker * (kLongRingBytes / sizeof(float4));
  LongRows& rows =
      reinterpret_cast<LongRows*>(long_shared + workers * kLongRingBytes / sizeof(float4))[worker];
  int at = beside ? worker * gridDim.x + blockIdx.x : blockIdx.x / cluster;
  do {
    const LongTile tile = LongTileAt<kLongMembers>(step, at);
    if (tile.members == 0) break;
    ShrinkTile(step, targets, tile, x, cluster, slice, ring, rows);
    at += workers * gridDim.x;
  } while (beside);
  if (blockIdx.x == 0) GridDependencyWait();
#endif
}

}  // namespace rootstock::kernels::cuda
