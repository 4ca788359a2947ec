#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/lora/lora_launch.h"
#include "kernels/rope/rope_cuda.h"
#include "kernels/rope/rope_long.cuh"
#include "kernels/rope/rope_tile.cuh"

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

template <bool kLora, int kPieces>
void RopeTile(const RopeArgs& args, const LoraStep& lora, const LoraTargets& targets,
              cudaStream_t stream) {
  const int heads = args.heads.num_heads + 2 * args.heads.num_kv_heads;
  const int blocks =
      PairBlocks(kLora ? &lora : nullptr, args.tokens, heads, kRopeWarps, kRopeBlocks<kLora>);
  LaunchDependent(RopeTileKernel<kLora, kPieces>, blocks, 32 * kRopeWarps, 0, stream, 1, args, lora,
                  targets, LoraSplits(args.tokens, targets.in));
}

void RopeLong(const RopeArgs& args, bool with_lora, const LoraStep& lora,
              const LoraTargets& targets, cudaStream_t stream) {
  const int heads = args.heads.num_heads + 2 * args.heads.num_kv_heads;
  if (with_lora) {
    constexpr int kShared = sizeof(StreamShared<2>);
    cudaFuncSetAttribute(RopeStreamKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    LaunchDependent(RopeStreamKernel, StreamBlocks(lora, heads, kStreamBlocks), kStreamThreads,
                    kShared, stream, 1, args, lora, targets);
  } else {
    LaunchDependent(RopeLongKernel, (args.tokens + 7) / 8, 32 * kRopeLongWarps, 0, stream, 1, args);
  }
}

}  // namespace

void RopeWriteKv(const RopeArgs& args, const LoraStep& lora, const LoraTargets& targets,
                 cudaStream_t stream) {
  if (args.tokens == 0) return;
  const bool with_lora = targets.count != 0;
  if (args.type == Type::kF32) {
    (with_lora ? RopePlain<float, true> : RopePlain<float, false>)(args, lora, targets, stream);
  } else if (args.heads.head_dim == 128 && AlignedTargets(targets, 128)) {
    if (args.tokens > kDecodeTokens) return RopeLong(args, with_lora, lora, targets, stream);
    (with_lora ? RopeTile<true, 2> : RopeTile<false, 2>)(args, lora, targets, stream);
  } else if (args.heads.head_dim == 64 && AlignedTargets(targets, 64)) {
    (with_lora ? RopeTile<true, 1> : RopeTile<false, 1>)(args, lora, targets, stream);
  } else {
    (with_lora ? RopePlain<__nv_bfloat16, true> : RopePlain<__nv_bfloat16, false>)(args, lora,
                                                                                   targets, stream);
  }
}

}  // namespace rootstock::kernels::cuda
