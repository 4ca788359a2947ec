#include <cuda_runtime.h>

#include "kernels/activation/activation_cuda.h"
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

template <bool kLora, int kOctets>
void SiluMulTile(const SiluMulArgs& args, const LoraStep& lora, const LoraTargets& targets,
                 cudaStream_t stream) {
  const int blocks = (args.n / 64 + kSiluWarps - 1) / kSiluWarps;
  const int workers = kLora ? TileWorkers(lora, args.tokens, 8 * kOctets, blocks, 4)
                            : (args.tokens + 8 * kOctets - 1) / (8 * kOctets);
  const dim3 grid(blocks, workers);
  LaunchDependent(SiluMulTileKernel<kLora, kOctets>, grid, 32 * kSiluWarps, 0, stream, 1, args,
                  lora, targets, LoraSplits(args.tokens, targets.in));
}

}  // namespace

void SiluMul(const SiluMulArgs& args, const LoraStep& lora, const LoraTargets& targets,
             cudaStream_t stream) {
  if (args.tokens == 0) return;
  const bool with_lora = targets.count != 0;
  if (args.type == Type::kF32) {
    (with_lora ? SiluMulPlain<float, true> : SiluMulPlain<float, false>)(args, lora, targets,
                                                                         stream);
  } else if (args.n % 64 == 0) {
    auto launch = SiluMulTile<false, 1>;
    if (with_lora)
      launch = args.tokens > kDecodeTokens ? SiluMulTile<true, 2> : SiluMulTile<true, 1>;
    launch(args, lora, targets, stream);
  } else {
    (with_lora ? SiluMulPlain<__nv_bfloat16, true>
               : SiluMulPlain<__nv_bfloat16, false>)(args, lora, targets, stream);
  }
}

}  // namespace rootstock::kernels::cuda
