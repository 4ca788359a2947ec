// The end of a row of which few values are left: in the first block, without the others.
#pragma once

#include "kernels/sampler/row_select.cuh"

namespace rootstock::kernels::cuda {

// Values at or above cut.above.
__device__ inline int CountKept(RowGroup& group, const Chunk& chunk, Cut cut) {
  int mine = 0;
  ForEachFour(chunk, [&](const float4& v, int) {
    mine += (v.x >= cut.above) + (v.y >= cut.above) + (v.z >= cut.above) + (v.w >= cut.above);
  });
  return static_cast<int>(group.Reduce(static_cast<double>(mine), Add()));
}

// Weights as integers: their sums are exact, whatever the order.
constexpr float kWeightUnit = 0x1p44f;

struct FewParams {
  float top_p = 1.0f;
  float min_p = 0.0f;
  double total = -1.0;  // that top_p is a share of; < 0: of these values
  double uniform = 0.0;
};

// This thread's value, of the row's n ≤ kFew: its id and weight (0 where it is cut already; the
// highest has 1). Returns the token, to the first block's threads. Shared memory: entries [kFew],
// masses [kFew], token.
__device__ inline int DrawOfFew(uint64_t* entries, uint64_t* masses, int* token, int n, int id,
                                float weight, FewParams p) {
  const int i = threadIdx.x;
  const uint64_t mine = Entry(weight, id), mass = __float2ull_rd(weight * kWeightUnit);
  __syncthreads();  // entries may hold what the callers read
  if (i < n) {
    entries[i] = mine;
    masses[i] = mass;
  }
  if (i == 0) *token = -1;
  __syncthreads();
  uint64_t above = 0, total = 0;
  if (i < n) {
#pragma unroll 2
    for (int j = 0; j < n; ++j) {
      total += masses[j];
      if (entries[j] > mine) above += masses[j];
    }
  }
  const double whole = p.total < 0.0 ? static_cast<double>(total) : p.total * kWeightUnit;
  // The first stays; it weighs 1.
  const bool in_top = p.top_p >= 1.0f || above == 0 || static_cast<double>(above) < p.top_p * whole;
  const bool kept = i < n && weight > 0.0f && in_top && weight >= p.min_p;
  __syncthreads();
  if (i < n && !kept) masses[i] = 0;
  __syncthreads();
  uint64_t before = 0, sum = 0;
  if (i < n) {
#pragma unroll 2
    for (int j = 0; j < n; ++j) {
      sum += masses[j];
      if (EntryId(entries[j]) < id) before += masses[j];
    }
  }
  const double target = fmin(p.uniform * static_cast<double>(sum), static_cast<double>(sum - 1));
  if (kept && static_cast<double>(before) <= target &&
      static_cast<double>(before + mass) > target) {
    *token = id;
  }
  __syncthreads();
  return *token;
}

}  // namespace rootstock::kernels::cuda
