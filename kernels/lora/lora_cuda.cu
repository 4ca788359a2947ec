#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/lora/lora_cuda.h"
#include "kernels/lora/lora_expand.cuh"
#include "kernels/lora/lora_expand_long.cuh"
#include "kernels/lora/lora_launch.h"
#include "kernels/lora/lora_plain.cuh"
#include "kernels/lora/lora_shrink_any.cuh"
#include "kernels/lora/lora_shrink_decode.cuh"
#include "kernels/lora/lora_shrink_long.cuh"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kPlainBlocks = 264;
constexpr int kLongSharedMost = kLongWorkers * kLongSharedBytes;

// To the same for every launch: a thread beside this one may be between its call and its launch.
void SetLongShared() {
  cudaFuncSetAttribute(ShrinkLongKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       kLongSharedMost);
}

void ShrinkLong(const LoraStep& step, const LoraTargets& targets, const __nv_bfloat16* x,
                cudaStream_t stream) {
  const int cluster = LongCluster(step.max_members);
  const int tiles = (step.max_members + kLongMembers - 1) / kLongMembers + step.max_groups;
  SetLongShared();
  LaunchDependent(ShrinkLongKernel, cluster * tiles, kLongThreads, kLongSharedBytes, stream,
                  cluster, step, targets, x, cluster, LongSlice(targets.in, cluster));
}

void ShrinkDecode(const LoraStep& step, const LoraTargets& targets, const __nv_bfloat16* x,
                  int num_tokens, cudaStream_t stream, bool x_ready) {
  const int splits = LoraSplits(num_tokens, targets.in);
  // Few blocks for few groups: the GEMM beside it wants the room.
  const int items = step.max_groups * targets.count * splits * 4;
  const int blocks = std::clamp(items, 1, 2 * NumSms());
  LaunchDependent(ShrinkDecodeKernel, blocks, kDecodeThreads, 0, stream, 1, step, targets, x,
                  splits, x_ready);
}

void ExpandTiled(const LoraStep& step, const LoraTargets& targets, int width, void* out,
                 int num_tokens, cudaStream_t stream) {
  if (num_tokens > kDecodeTokens) {
    LaunchDependent(ExpandStreamKernel, StreamBlocks(step, width / 64, kExpandStreamBlocks),
                    kStreamThreads, sizeof(StreamShared<1>), stream, 1, step, targets, width,
                    num_tokens, static_cast<__nv_bfloat16*>(out));
    return;
  }
  LaunchDependent(ExpandTileKernel, PairBlocks(&step, num_tokens, width / 64, kExpandWarps, 5),
                  32 * kExpandWarps, 0, stream, 1, step, targets,
                  LoraSplits(num_tokens, targets.in), width, num_tokens,
                  static_cast<__nv_bfloat16*>(out));
}

template <typename T>
void ShrinkPlain(const LoraStep& step, const LoraTargets& targets, const void* x, int num_tokens,
                 cudaStream_t stream) {
  LaunchDependent(ShrinkPlainKernel<T>, dim3(kPlainBlocks, targets.count), 256, 0, stream, 1, step,
                  targets, static_cast<const T*>(x), LoraSplits(num_tokens, targets.in));
}

template <typename T>
void ExpandPlain(const LoraStep& step, const LoraTargets& targets, int width, void* out,
                 int num_tokens, cudaStream_t stream) {
  LaunchDependent(ExpandPlainKernel<T>, dim3(num_tokens, (width + 255) / 256), 256, 0, stream, 1,
                  step, targets, LoraSplits(num_tokens, targets.in), width, static_cast<T*>(out));
}

}  // namespace

size_t VFloats(int max_members, int max_in) {
  const size_t decode =
      static_cast<size_t>(std::min(max_members, kDecodeMembers)) * LoraSplits(1, max_in);
  return std::max<size_t>(max_members, decode) * kMaxLoraTargets * kMaxLoraRank;
}

void LoraShrink(const LoraStep& step, const LoraTargets& targets, const void* x, int num_tokens,
                cudaStream_t stream, bool x_ready) {
  if (targets.count == 0 || num_tokens == 0) return;
  const auto* in = static_cast<const __nv_bfloat16*>(x);
  if (step.type == Type::kF32) {
    ShrinkPlain<float>(step, targets, x, num_tokens, stream);
  } else if (targets.in % 8 == 0 && num_tokens <= kDecodeTokens) {
    ShrinkDecode(step, targets, in, num_tokens, stream, x_ready);
  } else if (targets.in % 8 == 0 && HasWarpgroups()) {
    ShrinkLong(step, targets, in, stream);
  } else if (targets.in % 8 == 0) {
    LoraShrinkLongOnAny(step, targets, x, stream);
  } else {
    ShrinkPlain<__nv_bfloat16>(step, targets, x, num_tokens, stream);
  }
}

void LoraShrinkBeside(const LoraStep& step, const LoraTargets& targets, const void* x, int sms,
                      cudaStream_t stream) {
  SetLongShared();
  // In pairs, which leaves pairs of SMs to the GEMM's clusters.
  LaunchDependent(ShrinkLongKernel, sms, kLongWorkers * kLongThreads, kLongSharedMost, stream, 2,
                  step, targets, static_cast<const __nv_bfloat16*>(x), 1, LongSlice(targets.in, 1));
}

void LoraShrinkLongOnAny(const LoraStep& step, const LoraTargets& targets, const void* x,
                         cudaStream_t stream) {
  const int tiles = (step.max_members + kAnyMembers - 1) / kAnyMembers + step.max_groups;
  constexpr int kWarpStep = 32 * kShrinkWarps;
  const int slice = (targets.in + kWarpStep - 1) / kWarpStep * 32;
  cudaFuncSetAttribute(ShrinkAnyKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       kAnySharedBytes);
  LaunchDependent(ShrinkAnyKernel, tiles, kShrinkThreads, kAnySharedBytes, stream, 1, step, targets,
                  static_cast<const __nv_bfloat16*>(x), slice);
}

void LoraExpand(const LoraStep& step, const LoraTargets& targets, int width, void* out,
                int num_tokens, cudaStream_t stream) {
  if (targets.count == 0 || num_tokens == 0) return;
  if (step.type == Type::kF32) {
    ExpandPlain<float>(step, targets, width, out, num_tokens, stream);
  } else if (width % 64 == 0 && AlignedTargets(targets, 64)) {
    ExpandTiled(step, targets, width, out, num_tokens, stream);
  } else {
    ExpandPlain<__nv_bfloat16>(step, targets, width, out, num_tokens, stream);
  }
}

}  // namespace rootstock::kernels::cuda
