// Shrink and expand of any shape and type, in f32 arithmetic.
#pragma once

#include "kernels/cuda/pdl.cuh"
#include "kernels/lora/lora_device.cuh"

namespace rootstock::kernels::cuda {

// v[member][target][split][r] = Σ over the split's inputs of A[r] · x[token]: a warp each.
template <typename T>
__global__ void __launch_bounds__(256)
    ShrinkPlainKernel(LoraStep step, LoraTargets targets, const T* x, int splits) {
  GridDependencyWait();
  const int lane = threadIdx.x % 32;
  const int warps = gridDim.x * blockDim.x / 32;
  const int target = blockIdx.y;
  const int in = targets.in;
  const int chunk = splits == 1 ? in : kSplitInputs;
  for (int g = 0; g < *step.num_groups; ++g) {
    const LoraGroupEntry group = step.groups[g];
    const LoraSiteEntry& site = SiteOf(group.sites, targets, target);
    const int padded = PaddedRank(site.lora_rank);
    const int work = group.count * padded * splits;
    for (int w = (blockIdx.x * blockDim.x + threadIdx.x) / 32; w < work; w += warps) {
      const int r = w % padded;
      const int split = w / padded % splits;
      const int member = group.begin + w / padded / splits;
      float sum = 0.0f;
      if (r < site.lora_rank) {
        const T* a = SlabRow<T>(step, site.a[r]);
        const T* row = x + static_cast<size_t>(step.tokens[member]) * in;
        const int end = min(in, (split + 1) * chunk);
        for (int k = split * chunk + lane; k < end; k += 32) sum += ToFloat(a[k]) * ToFloat(row[k]);
        sum = WarpSum(sum);
      }
      if (lane == 0) VOf(step, splits, member, target)[split * padded + r] = sum;
    }
  }
}

// out[token][column] += LoRA: a thread each; grid [tokens, columns / block].
template <typename T>
__global__ void __launch_bounds__(256)
    ExpandPlainKernel(LoraStep step, LoraTargets targets, int splits, int width, T* out) {
  GridDependencyWait();
  const int column = blockIdx.y * blockDim.x + threadIdx.x;
  const LoraRow& row = step.rows[blockIdx.x];
  if (row.sites == nullptr || column >= width || TargetOf(targets, column) < 0) return;
  T* at = out + static_cast<size_t>(row.token) * width + column;
  *at = FromFloat<T>(ToFloat(*at) + LoraDelta<T>(step, targets, splits, blockIdx.x, column));
}

}  // namespace rootstock::kernels::cuda
