#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/rope/rope_cuda.h"
#include "kernels/rope/rope_plain.cuh"

namespace rootstock::kernels::cuda {
namespace {

template <typename T, bool kLora>
void RopePlain(const RopeArgs& args, const LoraStep& lora, const LoraTargets& targets,
               cudaStream_t stream) {
  const int heads = args.heads.num_heads + 2 * args.heads.num_kv_heads;
  LaunchDependent(RopePlainKernel<T, kLora>, dim3(args.tokens, heads), 32,
                  args.heads.head_dim * sizeof(float), stream, 1, args, lora, targets,
                  LoraSplits(args.tokens, targets.in));
}

}  // namespace

void RopeWriteKv(const RopeArgs& args, const LoraStep& lora, const LoraTargets& targets,
                 cudaStream_t stream) {
  if (args.tokens == 0) return;
  const bool with_lora = targets.count != 0;
  if (args.type == Type::kF32) {
    (with_lora ? RopePlain<float, true> : RopePlain<float, false>)(args, lora, targets, stream);
  } else {
    (with_lora ? RopePlain<__nv_bfloat16, true> : RopePlain<__nv_bfloat16, false>)(args, lora,
                                                                                   targets, stream);
  }
}

}  // namespace rootstock::kernels::cuda
