// CudaOps: LoRA, and what fully sharded adapters exchange.
#include <algorithm>
#include <utility>

#include "kernels/collective/exchange_lora_cuda.h"
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
  const bool any = std::any_of(targets.begin(), targets.end(), [this](const LoraTarget& target) {
    return (sizes_.modules & ModuleBit(target.module)) != 0;
  });
  expanded_ = false;
  if (sizes_.groups == 0 || !any) return {};
  LoraDelta delta;
  delta.layer = layer;
  delta.in = in;
  delta.num_targets = static_cast<int>(targets.size());
  std::copy(targets.begin(), targets.end(), delta.targets.begin());
  shrink_ = {TargetsOf(delta, LoraView::kShrink), TargetsOf(delta, LoraView::kExpand), x};
  return delta;
}

cuda::LoraTargets CudaOps::LeftOf(const LoraDelta& lora) const {
  return expanded_ ? cuda::LoraTargets{} : TargetsOf(lora, LoraView::kExpand);
}

// A GEMM brings each adapter of a tile's tokens by itself: for a few tokens each the consumers,
// which walk the tokens by adapter, are faster.
bool CudaOps::ExpandsInGemms() const {
  constexpr int kTokensAnAdapter = 64;
  return sizes_.groups > 0 && sizes_.exchange == 0 && sizes_.tokens > cuda::kDecodeTokens &&
         sizes_.groups * kTokensAnAdapter <= sizes_.tokens;
}

bool CudaOps::LinearSiluMul(const void* x, const Matrix& w, const LoraDelta& lora, int n,
                            void* gate_up, void* out) {
  cuda::LinearArgs args = ArgsOf(x, sizes_.tokens, w, nullptr, compute_type_, out);
  args.gated = true;
  cuda::LinearShrink shrink{lora_};
  cuda::LinearExpand expand{lora_};
  if (lora.num_targets != 0 && ExpandsInGemms()) {
    expand.targets = TargetsOf(lora, LoraView::kExpand);
    args.expand = &expand;
  } else if (lora.num_targets != 0) {
    shrink.targets = TargetsOf(lora, LoraView::kShrink);
    shrink.expand = TargetsOf(lora, LoraView::kExpand);
    args.shrink = &shrink;
  }
  const bool whole = lora.num_targets == 0 || sizes_.exchange == 0;
  if (!whole || w.dtype != compute_type_ || w.rows != 2 * n || !linear_->Gates(args)) {
    return Ops::LinearSiluMul(x, w, lora, n, gate_up, out);
  }
  const std::optional<PendingShrink> pending = std::exchange(shrink_, std::nullopt);
  if (pending.has_value() && args.expand != nullptr) {
    ShrinkFor(*pending, args, &expand);
  } else if (pending.has_value()) {
    ++stats_.lora_shrink.segments;
  }
  Check("linear", linear_->Run(args, device_.stream()));
  return true;
}

bool CudaOps::ExchangesItself(const StepSizes& sizes) const {
  return limits_.peers != nullptr &&
         cuda::TakesExchangeLora(*limits_.peers, sizes.tokens, sizes.members);
}

LoraExchange CudaOps::LoraPack(const LoraDelta& lora) {
  if (lora.num_targets == 0 || sizes_.exchange == 0) return {};
  const bool gather = !IsRowParallel(lora.targets[0].module);
  const cuda::LoraTargets targets = TargetsOf(lora, LoraView::kShrink);
  LoraExchange out;
  out.kind = gather ? LoraExchange::Kind::kGather : LoraExchange::Kind::kSum;
  out.data = exchange_.data;
  out.floats =
      gather ? cuda::LoraGatherFloats(exchange_, targets) : cuda::LoraSumFloats(exchange_, targets);
  out.done = ExchangesItself(sizes_);
  if (!out.done) {
    cuda::PackLora(lora_, exchange_, targets, gather, sizes_.tokens, device_.stream());
    return out;
  }
  const cudaError_t error = cuda::ExchangeLora(*limits_.peers, lora_, exchange_, targets, gather,
                                               sizes_.tokens, device_.stream());
  Check("LoRA exchange", error == cudaSuccess ? "" : cudaGetErrorString(error));
  return out;
}

void CudaOps::LoraUnpack(const LoraDelta& lora, const LoraExchange& exchange) {
  cuda::UnpackLora(lora_, exchange_, TargetsOf(lora, LoraView::kShrink),
                   exchange.kind == LoraExchange::Kind::kGather, sizes_.tokens, device_.stream());
}

void CudaOps::LoraExpand(const LoraDelta& lora, int width, void* out) {
  if (lora.num_targets == 0 || expanded_) return;
  cuda::LoraExpand(lora_, TargetsOf(lora, LoraView::kExpand), width, out, sizes_.tokens,
                   device_.stream());
  if (sizes_.exchange == 0) return;
  cuda::LoraExpand(lora_, TargetsOf(lora, LoraView::kExpandSlice), width, out, sizes_.tokens,
                   device_.stream());
}

}  // namespace rootstock
