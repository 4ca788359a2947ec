// LoRA on the host's processor, and what fully sharded adapters exchange.
#include <algorithm>
#include <chrono>

#include "common/tp/tp.h"
#include "worker/ops/cpu_ops.h"

namespace rootstock {
namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void CpuOps::CollectUses(int layer, std::span<const LoraTarget> targets) {
  uses_.clear();
  for (const LoraTarget& target : targets) {
    for (const LoraGroup& group : step_.groups) {
      const LoraSite& shrink = group.site(LoraView::kShrink, layer, target.module);
      const LoraSite& whole = group.site(LoraView::kExpand, layer, target.module);
      const LoraSite& slice = group.site(LoraView::kExpandSlice, layer, target.module);
      const LoraSite& expand = slice.lora_rank > 0 ? slice : whole;
      if (expand.lora_rank == 0) continue;
      LoraUse use{.module = target.module,
                  .lora_rank = expand.lora_rank,
                  .fully_sharded = group.fully_sharded};
      use.part.a = shrink.a;
      use.part.b = expand.b;
      use.part.lora_rank = shrink.lora_rank;
      use.part.scale = expand.scale;
      use.part.tokens = group.tokens.data();
      use.part.scales = group.scales.data();
      use.part.num_tokens = static_cast<int>(group.tokens.size());
      use.part.column = &expand == &slice ? target.slice_column : target.column;
      use.part.features = &expand == &slice ? target.slice_features : target.features;
      uses_.push_back(use);
    }
  }
}

LoraDelta CpuOps::LoraShrink(int layer, std::span<const LoraTarget> targets, int in,
                             const void* x) {
  CollectUses(layer, targets);
  if (uses_.empty()) return {};
  const double start = Seconds();
  size_t size = 0;
  for (const LoraUse& use : uses_) {
    size += static_cast<size_t>(use.part.num_tokens) * use.lora_rank;
  }
  if (lora_v_.size() < size) lora_v_.resize(size);
  float* v = lora_v_.data();
  parts_.clear();
  for (LoraUse& use : uses_) {
    use.part.v = v;
    v += static_cast<size_t>(use.part.num_tokens) * use.lora_rank;
    stats_.lora_weight_bytes +=
        sizeof(float) * (uint64_t{1} * use.part.lora_rank * in + use.lora_rank * use.part.features);
    parts_.push_back(use.part);
  }
  kernels::LoraShrink(memory_.slab, parts_.data(), static_cast<int>(parts_.size()),
                      static_cast<const float*>(x), in, threads_);
  stats_.lora_shrink.Add({parts_.size(), Seconds() - start});
  LoraDelta delta{layer, in, {}, static_cast<int>(targets.size())};
  std::copy(targets.begin(), targets.end(), delta.targets.begin());
  return delta;
}

int CpuOps::PieceFloats(const LoraUse& use, bool gather) const {
  return gather ? (use.lora_rank + limits_.tp_size - 1) / limits_.tp_size : use.lora_rank;
}

// The uses are those of the last LoraShrink, as is the delta; here and below.
LoraExchange CpuOps::LoraPack(const LoraDelta& lora) {
  if (lora.num_targets == 0) return {};
  const bool gather = !IsRowParallel(lora.targets[0].module);
  LoraExchange out;
  for (const LoraUse& use : uses_) {
    if (use.fully_sharded) {
      out.floats += static_cast<size_t>(use.part.num_tokens) * PieceFloats(use, gather);
    }
  }
  if (out.floats == 0) return {};
  out.kind = gather ? LoraExchange::Kind::kGather : LoraExchange::Kind::kSum;
  exchange_.resize(std::max(exchange_.size(), out.floats * (gather ? limits_.tp_size : 1)));
  out.data = exchange_.data();
  float* to = out.data + (gather ? limits_.tp_rank * out.floats : 0);
  for (const LoraUse& use : uses_) {
    if (!use.fully_sharded) continue;
    const int piece = PieceFloats(use, gather), held = use.part.lora_rank;
    const float* from = use.part.v;
    for (int i = 0; i < use.part.num_tokens; ++i, from += held, to += piece) {
      std::copy_n(from, held, to);
      std::fill(to + held, to + piece, 0.0f);
    }
  }
  return out;
}

void CpuOps::LoraUnpack(const LoraDelta& lora, const LoraExchange& exchange) {
  const bool gather = exchange.kind == LoraExchange::Kind::kGather;
  const float* from = exchange.data;
  for (LoraUse& use : uses_) {
    if (!use.fully_sharded) continue;
    const int piece = PieceFloats(use, gather);
    float* to = use.part.v;
    use.part.lora_rank = use.lora_rank;
    for (int i = 0; i < use.part.num_tokens; ++i, from += piece, to += use.lora_rank) {
      if (!gather) {
        std::copy_n(from, piece, to);
        continue;
      }
      for (int p = 0; p * piece < use.lora_rank; ++p) {
        const int owner = LoraPieceOwner(lora.layer, use.module, limits_.tp_size, p);
        std::copy_n(from + owner * exchange.floats, std::min(piece, use.lora_rank - p * piece),
                    to + p * piece);
      }
    }
  }
}

void CpuOps::LoraExpand(const LoraDelta& lora, int width, void* out) {
  if (lora.num_targets == 0) return;
  const double start = Seconds();
  parts_.clear();
  for (const LoraUse& use : uses_) parts_.push_back(use.part);
  kernels::LoraExpand(memory_.slab, parts_.data(), static_cast<int>(parts_.size()),
                      static_cast<float*>(out), width, threads_);
  stats_.lora_expand.Add({parts_.size(), Seconds() - start});
}

}  // namespace rootstock
