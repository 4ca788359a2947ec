// silu(gate) · up on the GPU.
#pragma once

#include "kernels/lora/lora_cuda.h"

namespace rootstock::kernels::cuda {

// gate_up += LoRA (if targets.count), in f32; out [tokens, n] = silu(gate) · up;
// gate_up [tokens, 2 · n] = gate | up, not written.
struct SiluMulArgs {
  Type type = Type::kBF16;
  const void* gate_up = nullptr;
  int n = 0;
  int tokens = 0;
  void* out = nullptr;
};
void SiluMul(const SiluMulArgs& args, const LoraStep& lora, const LoraTargets& targets,
             cudaStream_t stream);

}  // namespace rootstock::kernels::cuda
