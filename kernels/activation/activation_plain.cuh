// silu(gate) · up of any width and type: a thread a column.
#pragma once

#include "kernels/activation/activation_cuda.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/lora/lora_device.cuh"

namespace rootstock::kernels::cuda {

// grid [tokens, n / block].
template <typename T, bool kLora>
__global__ void __launch_bounds__(256)
    SiluMulPlainKernel(SiluMulArgs args, LoraStep step, LoraTargets targets, int splits) {
  GridDependencyWait();
  GridLaunchDependents();
  const int token = TokenAt<kLora>(step, blockIdx.x);
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= args.n) return;
  const T* in = static_cast<const T*>(args.gate_up) + static_cast<size_t>(token) * 2 * args.n;
  float gate = ToFloat(in[i]);
  float up = ToFloat(in[args.n + i]);
  if (kLora) {
    gate += LoraDelta<T>(step, targets, splits, blockIdx.x, i);
    up += LoraDelta<T>(step, targets, splits, blockIdx.x, args.n + i);
  }
  static_cast<T*>(args.out)[static_cast<size_t>(token) * args.n + i] =
      FromFloat<T>(SiluMulOne(gate, up));
}

}  // namespace rootstock::kernels::cuda
