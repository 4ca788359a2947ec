// The threads that shrink a tile of a long step on sm_90a, and where its rows begin.
#pragma once

#include "kernels/lora/lora_shrink_tiles.cuh"

namespace rootstock::kernels::cuda {

constexpr int kLongMembers = 128;               // of a tile: 64 a warpgroup
constexpr int kLongThreads = 2 * kLongMembers;  // of a worker
constexpr int kLongWorkers = 2;                 // of a block beside a GEMM
constexpr int kLongStep = 64;                   // inputs of a stage: 128 bytes a row
constexpr int kLongRingBytes = 108 << 10;       // two workers an SM
constexpr int kLongMaxRanks = 192;              // of a pass
constexpr int kLongRowsAtOnce = kLongThreads / 8;
constexpr int kLongSharedBytes = kLongRingBytes + (kLongMembers + kLongMaxRanks) * 4;  // a worker
constexpr uint32_t kNoRow = ~0u;

// Of a worker.
__device__ __forceinline__ int LongThread() { return threadIdx.x % kLongThreads; }
__device__ __forceinline__ void LongSync() {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.x / kLongThreads), "n"(kLongThreads)
               : "memory");
}

// Where the rows of a pass begin.
struct LongRows {
  uint32_t x[kLongMembers];   // tokens; kNoRow: no such member
  uint32_t a[kLongMaxRanks];  // row offsets; kNoRow: no such rank

  // All threads of the worker must call it.
  __device__ __forceinline__ void Set(const LoraStep& step, const LoraTargets& targets,
                                      const LongTile& tile, const RankBlocks& ranks, int first) {
    const int i = LongThread();
    if (i < kLongMembers) x[i] = i < tile.members ? step.tokens[tile.member + i] : kNoRow;
    if (i < kLongMaxRanks) {
      const RankBlock block = ranks.At(first + i / 8);
      const int rank = block.first + i % 8;
      const bool any = rank < block.lora_rank;
      a[i] = any ? __ldg(SiteOf(tile.sites, targets, block.target).a + rank) : kNoRow;
    }
    LongSync();
  }
};

// Blocks that share a tile's inputs: as many as leave no SM without one.
inline int LongCluster(int max_members) {
  const int tiles = (max_members + kLongMembers - 1) / kLongMembers;
  return tiles <= 16 ? 8 : tiles <= 32 ? 4 : tiles <= 64 ? 2 : 1;
}

// Inputs of a block.
inline int LongSlice(int in, int cluster) {
  return (in + cluster * kLongStep - 1) / (cluster * kLongStep) * kLongStep;
}

}  // namespace rootstock::kernels::cuda
