// Shrink of decode steps in a kernel of its own. Its blocks are small enough to run beside those of
// the GEMM that streams the base's weights; not beside its widest tile for 64 tokens, whose
// registers leave room on the spare SMs alone.
#pragma once

#include "kernels/lora/lora_shrink_items.cuh"

namespace rootstock::kernels::cuda {

// grid: any. x_ready: as LoraShrink says; what was written ahead of the kernel before is in the
// second cache.
__global__ void __launch_bounds__(kDecodeThreads, 3)
    ShrinkDecodeKernel(LoraStep step, LoraTargets targets, const __nv_bfloat16* x, int splits,
                       bool x_ready) {
  __shared__ DecodeSums part;
  GridLaunchDependents();
  ShrinkItems(step, targets, x, splits, x_ready, part);
  if (blockIdx.x == 0) GridDependencyWait();
}

}  // namespace rootstock::kernels::cuda
