#include "worker/model/model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {

Model::Model(const ModelSpec& spec, const TpPlan& tp, int tp_rank, const ModelParts& parts,
             int max_tokens, int max_outputs)
    : spec_(spec),
      tp_(tp),
      tp_rank_(tp_rank),
      parts_(parts),
      max_tokens_(max_tokens),
      max_outputs_(max_outputs),
      shape_{tp.shards[tp_rank].heads.size(), tp.shards[tp_rank].kv_heads.size(), spec.head_dim} {}

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const ModelSpec& spec, const TpPlan& tp,
                                                     int tp_rank, const ModelParts& parts,
                                                     int max_tokens, int max_outputs) {
  std::unique_ptr<Model> model(new Model(spec, tp, tp_rank, parts, max_tokens, max_outputs));
  RETURN_IF_ERROR(model->AllocateWorkspaces());
  return model;
}

absl::Status Model::AllocateWorkspaces() {
  const auto allocate = [this](size_t rows, size_t cols, DeviceBuffer& buffer) {
    absl::StatusOr<DeviceBuffer> memory =
        parts_.device->Allocate(rows * cols * sizeof(float), "workspace");
    if (memory.ok()) buffer = std::move(*memory);
    return memory.status();
  };
  const TpShard& shard = tp_.shards[tp_rank_];
  const size_t heads_width = static_cast<size_t>(shape_.num_heads) * spec_.head_dim;
  const size_t qkv_width =
      static_cast<size_t>(shape_.num_heads + 2 * shape_.num_kv_heads) * spec_.head_dim;
  const size_t ffn = shard.ffn.size();
  RETURN_IF_ERROR(allocate(max_tokens_, spec_.hidden_size, residual_));
  RETURN_IF_ERROR(allocate(max_tokens_, spec_.hidden_size, hidden_));
  RETURN_IF_ERROR(allocate(max_tokens_, spec_.hidden_size, delta_));
  RETURN_IF_ERROR(allocate(max_tokens_, std::max(qkv_width, 2 * ffn), wide_));
  RETURN_IF_ERROR(allocate(max_tokens_, std::max(heads_width, ffn), narrow_));
  RETURN_IF_ERROR(allocate(max_outputs_, shard.vocab.size(), partial_logits_));
  if (tp_rank_ == 0 && tp_.tp_size() > 1) {
    RETURN_IF_ERROR(allocate(max_outputs_, spec_.vocab_size, gathered_));
    RETURN_IF_ERROR(allocate(max_outputs_, spec_.vocab_size, logits_));
  }
  RETURN_IF_ERROR(allocate(spec_.max_position, spec_.head_dim / 2, rope_cos_));
  RETURN_IF_ERROR(allocate(spec_.max_position, spec_.head_dim / 2, rope_sin_));
  const std::vector<float> frequencies = spec_.RopeInverseFrequencies();
  float* cos = rope_cos_.as<float>();
  float* sin = rope_sin_.as<float>();
  for (int p = 0; p < spec_.max_position; ++p) {
    for (const float frequency : frequencies) {
      const float angle = static_cast<float>(p) * frequency;
      *cos++ = std::cos(angle);
      *sin++ = std::sin(angle);
    }
  }
  return absl::OkStatus();
}

absl::Status Model::BeginStep(const ForwardBatch& batch) {
  rows_.clear();
  for (const ForwardRow& row : batch.rows) {
    rows_.push_back({row.begin, row.num_tokens, row.start_position, row.page_table});
  }
  runs_.clear();
  for (const LoraSegment& segment : batch.segments) {
    runs_.push_back({segment.begin, segment.end, segment.adapter, segment.scale});
  }
  const int tokens = static_cast<int>(batch.token_ids.size());
  return parts_.ops->BeginStep(
      {batch.token_ids, batch.positions, rows_, lora_batch_.Build(runs_, tokens)});
}

absl::StatusOr<std::span<const float>> Model::Forward(const ForwardBatch& batch) {
  last_step_ = {};
  if (batch.token_ids.empty()) return std::span<const float>();
  RETURN_IF_ERROR(CheckBatch(batch));
  RETURN_IF_ERROR(BeginStep(batch));
  const int tokens = static_cast<int>(batch.token_ids.size());
  const size_t size = static_cast<size_t>(tokens) * spec_.hidden_size;
  parts_.ops->Embed(parts_.weights->embedding(), tp_.shards[tp_rank_].vocab.begin,
                    residual_.as<float>());
  if (tp_.tp_size() > 1) {
    RETURN_IF_ERROR(parts_.communicator->AllReduceSum({residual_.as<float>(), size}));
  }
  for (int layer = 0; layer < spec_.num_layers; ++layer) RETURN_IF_ERROR(RunLayer(layer, tokens));
  const bool wanted = !batch.logit_tokens.empty();
  if (wanted) RETURN_IF_ERROR(ComputeLogits(batch));
  ASSIGN_OR_RETURN(last_step_.ops, parts_.ops->EndStep());
  last_step_.distinct_adapters = lora_batch_.distinct_adapters();
  if (!wanted || tp_rank_ != 0) return std::span<const float>();
  const DeviceBuffer& logits = tp_.tp_size() > 1 ? logits_ : partial_logits_;
  return std::span<const float>(logits.as<float>(), batch.logit_tokens.size() * spec_.vocab_size);
}

void Model::ApplyLora(int layer, std::span<const LoraTarget> targets, int in, const float* x,
                      int width, float* out) {
  if (parts_.ops->LoraShrink(layer, targets, in, x).empty()) return;
  parts_.ops->LoraExpand(layer, targets, width, out);
}

absl::Status Model::RunLayer(int layer, int tokens) {
  const LayerWeights& w = parts_.weights->layers()[layer];
  // The block before left its output in delta_; the first block follows the embedding.
  parts_.ops->AddRmsNorm(residual_.as<float>(), layer == 0 ? nullptr : delta_.as<float>(),
                         w.input_norm, spec_.rms_norm_eps, spec_.hidden_size, {},
                         hidden_.as<float>());
  RETURN_IF_ERROR(RunAttention(layer, tokens));
  parts_.ops->AddRmsNorm(residual_.as<float>(), delta_.as<float>(), w.post_norm, spec_.rms_norm_eps,
                         spec_.hidden_size, {}, hidden_.as<float>());
  return RunMlp(layer, tokens);
}

absl::Status Model::RunAttention(int layer, int tokens) {
  const LayerWeights& w = parts_.weights->layers()[layer];
  const int q = shape_.num_heads * shape_.head_dim;
  const int kv = shape_.num_kv_heads * shape_.head_dim;
  float* qkv = wide_.as<float>();
  float* context = narrow_.as<float>();
  parts_.ops->Linear(hidden_.as<float>(), tokens, w.qkv, w.qkv_bias, qkv);
  const LoraTarget inputs[] = {{Module::kQ, 0, q}, {Module::kK, q, kv}, {Module::kV, q + kv, kv}};
  ApplyLora(layer, inputs, spec_.hidden_size, hidden_.as<float>(), q + 2 * kv, qkv);
  const RopeAndKv rope{rope_cos_.as<float>(), rope_sin_.as<float>(), w.q_norm, w.k_norm,
                       spec_.rms_norm_eps};
  parts_.ops->RopeWriteKv(layer, shape_, rope, qkv);
  parts_.ops->Attention(layer, shape_, qkv, context);
  parts_.ops->Linear(context, tokens, w.o, nullptr, delta_.as<float>());
  const LoraTarget output[] = {{Module::kO, 0, spec_.hidden_size}};
  ApplyLora(layer, output, q, context, spec_.hidden_size, delta_.as<float>());
  return ReduceDelta(tokens);
}

absl::Status Model::RunMlp(int layer, int tokens) {
  const LayerWeights& w = parts_.weights->layers()[layer];
  const int ffn = tp_.shards[tp_rank_].ffn.size();
  float* gate_up = wide_.as<float>();
  float* product = narrow_.as<float>();
  parts_.ops->Linear(hidden_.as<float>(), tokens, w.gate_up, nullptr, gate_up);
  const LoraTarget inputs[] = {{Module::kGate, 0, ffn}, {Module::kUp, ffn, ffn}};
  ApplyLora(layer, inputs, spec_.hidden_size, hidden_.as<float>(), 2 * ffn, gate_up);
  parts_.ops->SiluMul(gate_up, ffn, product);
  parts_.ops->Linear(product, tokens, w.down, nullptr, delta_.as<float>());
  const LoraTarget output[] = {{Module::kDown, 0, spec_.hidden_size}};
  ApplyLora(layer, output, ffn, product, spec_.hidden_size, delta_.as<float>());
  return ReduceDelta(tokens);
}

// LoRA's partial results of row-parallel modules are in delta_ already: one collective for both.
absl::Status Model::ReduceDelta(int tokens) {
  if (tp_.tp_size() == 1) return absl::OkStatus();
  return parts_.communicator->AllReduceSum(
      {delta_.as<float>(), static_cast<size_t>(tokens) * spec_.hidden_size});
}

absl::Status Model::ComputeLogits(const ForwardBatch& batch) {
  const int outputs = static_cast<int>(batch.logit_tokens.size());
  parts_.ops->AddRmsNorm(residual_.as<float>(), delta_.as<float>(), parts_.weights->final_norm(),
                         spec_.rms_norm_eps, spec_.hidden_size, batch.logit_tokens,
                         hidden_.as<float>());
  float* partial = partial_logits_.as<float>();
  parts_.ops->Linear(hidden_.as<float>(), outputs, parts_.weights->head(), nullptr, partial);
  if (tp_.tp_size() == 1) return absl::OkStatus();
  std::vector<size_t> counts;
  for (const TpShard& shard : tp_.shards) {
    counts.push_back(static_cast<size_t>(outputs) * shard.vocab.size());
  }
  std::span<float> gathered;
  if (tp_rank_ == 0) {
    gathered = {gathered_.as<float>(), static_cast<size_t>(outputs) * spec_.vocab_size};
  }
  RETURN_IF_ERROR(
      parts_.communicator->Gather({partial, counts[tp_rank_]}, counts, gathered, /*root=*/0));
  if (tp_rank_ != 0) return absl::OkStatus();
  const float* in = gathered_.as<float>();
  for (const TpShard& shard : tp_.shards) {
    for (int i = 0; i < outputs; ++i, in += shard.vocab.size()) {
      std::copy_n(
          in, shard.vocab.size(),
          logits_.as<float>() + static_cast<size_t>(i) * spec_.vocab_size + shard.vocab.begin);
    }
  }
  return absl::OkStatus();
}

}  // namespace rootstock
