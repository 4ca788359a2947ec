#include "worker/ops/cpu_ops.h"

#include <omp.h>

#include <algorithm>
#include <numeric>

#include "kernels/activation/activation.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"

namespace rootstock {
absl::Status CpuOps::BeginStep(const StepView& step) {
  omp_set_num_threads(threads_);  // of this thread: oneDNN asks OpenMP
  step_ = step;
  stats_ = {};
  error_ = absl::OkStatus();
  token_ids_.assign(step.token_ids.begin(), step.token_ids.end());
  for (int32_t& id : token_ids_) {
    if (id < 0) id = sampler_->last_tokens()[SlotOf(id)];
  }
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

void CpuOps::Embed(const Matrix& table, int first_id, float* residual) {
  kernels::EmbedArgs args;
  args.table = table.data;
  args.bf16 = table.dtype == DType::kBF16;
  args.table_rows = table.rows;
  args.first_id = first_id;
  args.ids = token_ids_.data();
  args.tokens = num_tokens();
  args.n = table.cols;
  args.out = residual;
  kernels::EmbedRows(args, threads_);
}

void CpuOps::AddRmsNorm(float* residual, void* delta, const LoraDelta& lora, const float* weight,
                        float eps, int n, bool outputs_only, void* out) {
  LoraExpand(lora, n, delta);
  kernels::NormArgs args;
  args.residual = residual;
  args.delta = static_cast<const float*>(delta);
  args.weight = weight;
  args.eps = eps;
  args.n = n;
  args.tokens = num_tokens();
  args.rows = outputs_only ? step_.output_tokens.data() : nullptr;
  args.num_rows = outputs_only ? num_outputs() : 0;
  args.out = static_cast<float*>(out);
  kernels::AddRmsNorm(args, threads_);
}

void CpuOps::JoinLogits(std::span<const int> widths, const float* parts, float* logits) {
  const size_t stride = std::accumulate(widths.begin(), widths.end(), size_t{0});
  for (const int width : widths) {
    for (int i = 0; i < num_outputs(); ++i, parts += width) {
      std::copy_n(parts, width, logits + i * stride);
    }
    logits += width;
  }
}

void CpuOps::RopeWriteKv(int layer, const AttentionShape& shape, const RopeAndKv& rope,
                         const LoraDelta& lora, void* qkv) {
  LoraExpand(lora, (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim, qkv);
  kernels::RopeArgs args;
  args.qkv = static_cast<float*>(qkv);
  args.positions = step_.positions.data();
  args.pages = token_pages_.data();
  args.tokens = num_tokens();
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

void CpuOps::Attention(int layer, const AttentionShape& shape, const void* qkv, void* out) {
  attention_rows_.clear();
  for (const SequenceView& row : step_.rows) {
    attention_rows_.push_back({row.begin, row.num_tokens, row.start_position, row.pages.data()});
  }
  kernels::AttentionArgs args;
  args.qkv = static_cast<const float*>(qkv);
  args.rows = attention_rows_.data();
  args.num_rows = static_cast<int>(attention_rows_.size());
  args.num_heads = shape.num_heads;
  args.num_kv_heads = shape.num_kv_heads;
  args.head_dim = shape.head_dim;
  args.slab = memory_.slab;
  args.page_bytes = memory_.page_bytes;
  args.layer_offset = LayerOffset(layer, shape);
  args.page_tokens = static_cast<int>(memory_.page_tokens);
  args.out = static_cast<float*>(out);
  kernels::PagedAttention(args, threads_);
}

void CpuOps::SiluMul(void* gate_up, const LoraDelta& lora, int n, void* out) {
  LoraExpand(lora, 2 * n, gate_up);
  kernels::SiluMul(static_cast<const float*>(gate_up), num_tokens(), n, static_cast<float*>(out),
                   threads_);
}

}  // namespace rootstock
