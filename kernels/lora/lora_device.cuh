// How v lies in memory, and the plain expand that consumers of any shape and type use.
#pragma once

#include "kernels/cuda/vec.cuh"
#include "kernels/lora/lora_cuda.h"

namespace rootstock::kernels::cuda {

constexpr int kSplitInputs = 2048;  // inputs of one partial sum of v in a decode step
constexpr size_t kRowUnit = 128;    // bytes that one step of a row offset stands for

// Partial sums of v, which consumers add in their order: fixed by `in` for decode, so that a row's
// bits don't depend on its batch; one for longer steps.
__host__ __device__ constexpr int LoraSplits(int num_tokens, int in) {
  return num_tokens > kDecodeTokens ? 1 : (in + kSplitInputs - 1) / kSplitInputs;
}

// Ranks in v are padded with zeros to a multiple of 16.
__host__ __device__ constexpr int PaddedRank(int lora_rank) { return (lora_rank + 15) & ~15; }

// v of (member, target): [splits, PaddedRank(lora_rank)], at the start of room for the largest
// rank.
__device__ __forceinline__ float* VOf(const LoraStep& step, int splits, int member, int target) {
  const size_t index = static_cast<size_t>(member) * kMaxLoraTargets + target;
  return step.v + index * splits * kMaxLoraRank;
}

template <typename T>
__device__ __forceinline__ const T* SlabRow(const LoraStep& step, uint32_t offset) {
  return reinterpret_cast<const T*>(step.slab + offset * kRowUnit);
}

// By selection: indexing a kernel's parameter would copy it to local memory.
__device__ __forceinline__ int Pick(const int (&of)[kMaxLoraTargets], int target) {
  int value = of[0];
#pragma unroll
  for (int i = 1; i < kMaxLoraTargets; ++i) value = target == i ? of[i] : value;
  return value;
}

__device__ __forceinline__ const LoraSiteEntry& SiteOf(const LoraSiteEntry* sites,
                                                       const LoraTargets& targets, int target) {
  return sites[targets.layer * kModules + Pick(targets.module, target)];
}

// The target whose columns hold `column`; -1: none.
__device__ __forceinline__ int TargetOf(const LoraTargets& targets, int column) {
#pragma unroll
  for (int i = 0; i < kMaxLoraTargets; ++i) {
    if (i < targets.count && column >= targets.column[i] &&
        column < targets.column[i] + targets.features[i]) {
      return i;
    }
  }
  return -1;
}

// The token at place `slot` in the order of the rows.
template <bool kLora>
__device__ __forceinline__ int TokenAt(const LoraStep& step, int slot) {
  return kLora ? step.rows[slot].token : slot;
}

// Σ over the token's adapters of scale · Σ_r v[r] · Bᵀ[r][column of the target]: f32 throughout.
template <typename T>
__device__ float LoraDelta(const LoraStep& step, const LoraTargets& targets, int splits, int entry,
                           int column) {
  const int target = TargetOf(targets, column);
  float sum = 0.0f;
  if (target < 0) return sum;
  const int at = column - Pick(targets.column, target);
  for (; entry >= 0; entry = step.rows[entry].next) {
    const LoraRow& row = step.rows[entry];
    if (row.sites == nullptr) break;
    const LoraSiteEntry& site = SiteOf(row.sites, targets, target);
    const float* v = VOf(step, splits, row.member, target);
    const int stride = PaddedRank(site.lora_rank);
    float dot = 0.0f;
    for (int r = 0; r < site.lora_rank; ++r) {
      float value = 0.0f;
      for (int s = 0; s < splits; ++s) value += v[s * stride + r];
      dot += value * ToFloat(SlabRow<T>(step, site.b[r])[at]);
    }
    sum += site.scale * row.scale * dot;
  }
  return sum;
}

}  // namespace rootstock::kernels::cuda
