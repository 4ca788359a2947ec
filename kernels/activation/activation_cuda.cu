#include <cuda_runtime.h>

#include "kernels/activation/activation_cuda.h"
#include "kernels/activation/activation_long.cuh"
#include "kernels/activation/activation_tile.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/lora/lora_launch.h"

namespace rootstock::kernels::cuda {
namespace {

template <typename T, bool kLora>
void SiluMulPlain(const SiluMulArgs& args, const LoraStep& lora, const LoraTargets& targets,
                  cudaStream_t stream) {
  LaunchDependent(SiluMulPlainKernel<T, kLora>, dim3(args.tokens, (args.n + 255) / 256), 256, 0,
                  stream, 1, args, lora, targets, LoraSplits(args.tokens, targets.in));
}

template <bool kLora>
void SiluMulTile(const SiluMulArgs& args, const LoraStep& lora, const LoraTargets& targets,
                 cudaStream_t stream) {
  if (kLora && args.tokens > kDecodeTokens) {
    constexpr int kShared = sizeof(StreamShared<2>);
    cudaFuncSetAttribute(SiluMulStreamKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    LaunchDependent(SiluMulStreamKernel, StreamBlocks(lora, args.n / 64, kStreamBlocks),
                    kStreamThreads, kShared, stream, 1, args, lora, targets);
    return;
  }
  const int blocks =
      PairBlocks(kLora ? &lora : nullptr, args.tokens, args.n / 64, kSiluWarps, kSiluBlocks);
  LaunchDependent(SiluMulTileKernel<kLora>, blocks, 32 * kSiluWarps, 0, stream, 1, args, lora,
                  targets, LoraSplits(args.tokens, targets.in));
}

}  // namespace

void SiluMul(const SiluMulArgs& args, const LoraStep& lora, const LoraTargets& targets,
             cudaStream_t stream) {
  if (args.tokens == 0) return;
  const bool with_lora = targets.count != 0;
  if (args.type == Type::kF32) {
    (with_lora ? SiluMulPlain<float, true> : SiluMulPlain<float, false>)(args, lora, targets,
                                                                         stream);
  } else if (args.n % 64 == 0 && AlignedTargets(targets, 64)) {
    (with_lora ? SiluMulTile<true> : SiluMulTile<false>)(args, lora, targets, stream);
  } else {
    (with_lora ? SiluMulPlain<__nv_bfloat16, true>
               : SiluMulPlain<__nv_bfloat16, false>)(args, lora, targets, stream);
  }
}

}  // namespace rootstock::kernels::cuda
