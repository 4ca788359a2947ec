#include <cuda_runtime.h>

#include "kernels/activation/activation_cuda.h"
#include "kernels/activation/activation_plain.cuh"
#include "kernels/cuda/launch.h"

namespace rootstock::kernels::cuda {
namespace {

template <typename T, bool kLora>
void SiluMulPlain(const SiluMulArgs& args, const LoraStep& lora, const LoraTargets& targets,
                  cudaStream_t stream) {
  LaunchDependent(SiluMulPlainKernel<T, kLora>, dim3(args.tokens, (args.n + 255) / 256), 256, 0,
                  stream, 1, args, lora, targets, LoraSplits(args.tokens, targets.in));
}

}  // namespace

void SiluMul(const SiluMulArgs& args, const LoraStep& lora, const LoraTargets& targets,
             cudaStream_t stream) {
  if (args.tokens == 0) return;
  const bool with_lora = targets.count != 0;
  if (args.type == Type::kF32) {
    (with_lora ? SiluMulPlain<float, true> : SiluMulPlain<float, false>)(args, lora, targets,
                                                                         stream);
  } else {
    (with_lora ? SiluMulPlain<__nv_bfloat16, true>
               : SiluMulPlain<__nv_bfloat16, false>)(args, lora, targets, stream);
  }
}

}  // namespace rootstock::kernels::cuda
