#include "worker/ops/cpu_ops.h"

#include <omp.h>

#include <algorithm>
#include <chrono>

#include "kernels/activation/activation.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"

namespace rootstock {
namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

absl::Status CpuOps::BeginStep(const StepView& step) {
  omp_set_num_threads(threads_);  // of this thread: oneDNN asks OpenMP
  step_ = step;
  stats_ = {};
  error_ = absl::OkStatus();
  token_pages_.resize(step.token_ids.size());
  for (const SequenceView& row : step.rows) {
    for (int i = 0; i < row.num_tokens; ++i) {
      token_pages_[row.begin + i] = row.pages[(row.start_position + i) / memory_.page_tokens];
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<OpsStepStats> CpuOps::EndStep() {
  if (!error_.ok()) return error_;
  return stats_;
}

size_t CpuOps::LayerOffset(int layer, const AttentionShape& shape) const {
  return size_t{2} * layer * memory_.page_tokens * shape.num_kv_heads * shape.head_dim *
         sizeof(float);
}

void CpuOps::Embed(const Matrix& table, int first_id, float* out) {
  kernels::EmbedArgs args;
  args.table = table.data;
  args.bf16 = table.dtype == DType::kBF16;
  args.table_rows = table.rows;
  args.first_id = first_id;
  args.ids = step_.token_ids.data();
  args.tokens = tokens();
  args.n = table.cols;
  args.out = out;
  kernels::EmbedRows(args, threads_);
}

void CpuOps::AddRmsNorm(float* residual, const float* delta, const float* weight, float eps, int n,
                        std::span<const int32_t> rows, float* out) {
  kernels::NormArgs args;
  args.residual = residual;
  args.delta = delta;
  args.weight = weight;
  args.eps = eps;
  args.n = n;
  args.tokens = tokens();
  args.rows = rows.empty() ? nullptr : rows.data();
  args.num_rows = static_cast<int>(rows.size());
  args.out = out;
  kernels::AddRmsNorm(args, threads_);
}

void CpuOps::RopeWriteKv(int layer, const AttentionShape& shape, const RopeAndKv& rope,
                         float* qkv) {
  kernels::RopeArgs args;
  args.qkv = qkv;
  args.positions = step_.positions.data();
  args.pages = token_pages_.data();
  args.tokens = tokens();
  args.num_heads = shape.num_heads;
  args.num_kv_heads = shape.num_kv_heads;
  args.head_dim = shape.head_dim;
  args.cos = rope.cos;
  args.sin = rope.sin;
  args.q_norm = rope.q_norm;
  args.k_norm = rope.k_norm;
  args.eps = rope.eps;
  args.slab = memory_.slab;
  args.page_bytes = memory_.page_bytes;
  args.layer_offset = LayerOffset(layer, shape);
  args.page_tokens = static_cast<int>(memory_.page_tokens);
  kernels::RopeWriteKv(args, threads_);
}

void CpuOps::Attention(int layer, const AttentionShape& shape, const float* qkv, float* out) {
  attention_rows_.clear();
  for (const SequenceView& row : step_.rows) {
    attention_rows_.push_back({row.begin, row.num_tokens, row.start_position, row.pages.data()});
  }
  kernels::AttentionArgs args;
  args.qkv = qkv;
  args.rows = attention_rows_.data();
  args.num_rows = static_cast<int>(attention_rows_.size());
  args.num_heads = shape.num_heads;
  args.num_kv_heads = shape.num_kv_heads;
  args.head_dim = shape.head_dim;
  args.slab = memory_.slab;
  args.page_bytes = memory_.page_bytes;
  args.layer_offset = LayerOffset(layer, shape);
  args.page_tokens = static_cast<int>(memory_.page_tokens);
  args.out = out;
  kernels::PagedAttention(args, threads_);
}

void CpuOps::SiluMul(const float* gate_up, int n, float* out) {
  kernels::SiluMul(gate_up, tokens(), n, out, threads_);
}

void CpuOps::CollectParts(int layer, std::span<const LoraTarget> targets) {
  parts_.clear();
  for (const LoraTarget& target : targets) {
    for (const LoraGroup& group : step_.groups) {
      const LoraSite& site =
          group.sites[layer * kAllModules.size() + static_cast<size_t>(target.module)];
      if (site.lora_rank == 0) continue;
      kernels::LoraPart part;
      part.a = site.a;
      part.b = site.b;
      part.lora_rank = site.lora_rank;
      part.scale = site.scale;
      part.tokens = group.tokens.data();
      part.scales = group.scales.data();
      part.num_tokens = static_cast<int>(group.tokens.size());
      part.column = target.column;
      part.features = target.features;
      parts_.push_back(part);
    }
  }
}

std::span<float> CpuOps::LoraShrink(int layer, std::span<const LoraTarget> targets, int in,
                                    const float* x) {
  CollectParts(layer, targets);
  if (parts_.empty()) return {};
  const double start = Seconds();
  size_t size = 0;
  for (const kernels::LoraPart& part : parts_) {
    size += static_cast<size_t>(part.num_tokens) * part.lora_rank;
  }
  if (lora_v_.size() < size) lora_v_.resize(size);
  float* v = lora_v_.data();
  for (kernels::LoraPart& part : parts_) {
    part.v = v;
    v += static_cast<size_t>(part.num_tokens) * part.lora_rank;
    stats_.lora_weight_bytes += uint64_t{sizeof(float)} * part.lora_rank * (in + part.features);
  }
  kernels::LoraShrink(memory_.slab, parts_.data(), static_cast<int>(parts_.size()), x, in,
                      threads_);
  stats_.lora_shrink.Add({parts_.size(), Seconds() - start});
  return {lora_v_.data(), size};
}

void CpuOps::LoraExpand(int layer, std::span<const LoraTarget> targets, int width, float* out) {
  if (parts_.empty()) return;
  const double start = Seconds();
  kernels::LoraExpand(memory_.slab, parts_.data(), static_cast<int>(parts_.size()), out, width,
                      threads_);
  stats_.lora_expand.Add({parts_.size(), Seconds() - start});
}

}  // namespace rootstock
