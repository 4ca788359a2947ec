// CudaOps: LoRA, and what fully sharded adapters exchange.
#include <algorithm>

#include "worker/ops/cuda_ops.h"

namespace rootstock {

namespace cuda = kernels::cuda;

cuda::LoraTargets CudaOps::TargetsOf(const LoraDelta& lora, LoraView view) const {
  cuda::LoraTargets out;
  out.layer = static_cast<int>(view) * limits_.num_layers + lora.layer;
  out.count = lora.num_targets;
  out.in = lora.in;
  for (int i = 0; i < lora.num_targets; ++i) {
    const LoraTarget& target = lora.targets[i];
    const bool slice = view == LoraView::kExpandSlice;
    out.module[i] = static_cast<int>(target.module);
    out.column[i] = slice ? target.slice_column : target.column;
    out.features[i] = slice ? target.slice_features : target.features;
  }
  return out;
}

LoraDelta CudaOps::LoraShrink(int layer, std::span<const LoraTarget> targets, int in,
                              const void* x) {
  if (sizes_.groups == 0) return {};
  LoraDelta delta;
  delta.layer = layer;
  delta.in = in;
  delta.num_targets = static_cast<int>(targets.size());
  std::copy(targets.begin(), targets.end(), delta.targets.begin());
  shrink_ = {TargetsOf(delta, LoraView::kShrink), x};
  return delta;
}

LoraExchange CudaOps::LoraPack(const LoraDelta& lora) {
  if (lora.num_targets == 0 || sizes_.exchange == 0) return {};
  const bool gather = !IsRowParallel(lora.targets[0].module);
  const cuda::LoraTargets targets = TargetsOf(lora, LoraView::kShrink);
  cuda::PackLora(lora_, exchange_, targets, gather, sizes_.tokens, device_.stream());
  return gather ? LoraExchange{LoraExchange::Kind::kGather, exchange_.data,
                               cuda::LoraGatherFloats(exchange_, targets)}
                : LoraExchange{LoraExchange::Kind::kSum, exchange_.data,
                               cuda::LoraSumFloats(exchange_, targets)};
}

void CudaOps::LoraUnpack(const LoraDelta& lora, const LoraExchange& exchange) {
  cuda::UnpackLora(lora_, exchange_, TargetsOf(lora, LoraView::kShrink),
                   exchange.kind == LoraExchange::Kind::kGather, sizes_.tokens, device_.stream());
}

void CudaOps::LoraExpand(const LoraDelta& lora, int width, void* out) {
  if (lora.num_targets == 0) return;
  cuda::LoraExpand(lora_, TargetsOf(lora, LoraView::kExpand), width, out, sizes_.tokens,
                   device_.stream());
  if (sizes_.exchange == 0) return;
  cuda::LoraExpand(lora_, TargetsOf(lora, LoraView::kExpandSlice), width, out, sizes_.tokens,
                   device_.stream());
}

}  // namespace rootstock
