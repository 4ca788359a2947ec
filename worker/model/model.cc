#include "worker/model/model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace rootstock {

Model::Model(const ModelSpec& spec, const TpPlan& tp, int tp_rank, const ModelParts& parts,
             const ModelLimits& limits)
    : spec_(spec),
      tp_(tp),
      tp_rank_(tp_rank),
      parts_(parts),
      limits_(limits),
      shape_{tp.shards[tp_rank].heads.size(), tp.shards[tp_rank].kv_heads.size(), spec.head_dim} {}

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const ModelSpec& spec, const TpPlan& tp,
                                                     int tp_rank, const ModelParts& parts,
                                                     const ModelLimits& limits) {
  std::unique_ptr<Model> model(new Model(spec, tp, tp_rank, parts, limits));
  const int heads_width = model->shape_.num_heads * spec.head_dim;
  OpsLimits ops;
  ops.max_tokens = limits.max_tokens;
  ops.max_rows = limits.max_rows;
  ops.max_outputs = limits.max_outputs;
  ops.max_positions = limits.max_positions;
  ops.attention = model->shape_;
  ops.max_in = std::max({spec.hidden_size, heads_width, tp.shards[tp_rank].ffn.size()});
  ops.num_layers = spec.num_layers;
  ops.tp_size = tp.tp_size();
  ops.tp_rank = tp_rank;
  ops.rehearsal = limits.rehearsal;
  ops.peers = parts.communicator->peers();
  // A rank without room must not leave the others in the collectives that are recorded.
  RETURN_IF_ERROR(parts.communicator->Agree(model->TakeMemory(ops)));
  if (!limits.record) return model;
  const auto forward = [raw = model.get()] { return raw->RunCountedStep(); };
  // The others may wait for this rank, and end the group before it can tell its error elsewhere.
  const auto logged = [](const absl::Status& status) {
    if (!status.ok()) LogError(std::string(status.message()));
    return status;
  };
  // Recording takes the ranks unlike times, and a collective waits for the last one only so long.
  RETURN_IF_ERROR(parts.communicator->Agree(logged(parts.ops->Record(forward))));
  RETURN_IF_ERROR(logged(parts.ops->WarmUp(forward)));
  return model;
}

absl::Status Model::TakeMemory(const OpsLimits& limits) {
  RETURN_IF_ERROR(AllocateWorkspaces());
  RETURN_IF_ERROR(MakeRopeTables());
  return parts_.ops->Prepare(limits);
}

absl::Status Model::AllocateWorkspaces() {
  const auto allocate = [this](DType type, size_t rows, size_t cols, DeviceBuffer& buffer) {
    absl::StatusOr<DeviceBuffer> memory =
        parts_.device->Allocate(rows * cols * DTypeBytes(type), "workspace");
    if (memory.ok()) buffer = std::move(*memory);
    return memory.status();
  };
  const DType type = parts_.ops->activation_type();
  const TpShard& shard = tp_.shards[tp_rank_];
  const size_t tokens = limits_.max_tokens, outputs = limits_.max_outputs;
  const size_t heads_width = static_cast<size_t>(shape_.num_heads) * spec_.head_dim;
  const size_t qkv_width =
      static_cast<size_t>(shape_.num_heads + 2 * shape_.num_kv_heads) * spec_.head_dim;
  const size_t ffn = shard.ffn.size();
  RETURN_IF_ERROR(allocate(DType::kF32, tokens, spec_.hidden_size, residual_));
  RETURN_IF_ERROR(allocate(type, tokens, spec_.hidden_size, hidden_));
  RETURN_IF_ERROR(allocate(type, tokens, spec_.hidden_size, delta_));
  RETURN_IF_ERROR(allocate(type, tokens, std::max(qkv_width, 2 * ffn), wide_));
  RETURN_IF_ERROR(allocate(type, tokens, std::max(heads_width, ffn), narrow_));
  RETURN_IF_ERROR(allocate(DType::kF32, outputs, shard.vocab.size(), partial_logits_));
  if (tp_rank_ == 0 && tp_.tp_size() > 1) {
    RETURN_IF_ERROR(allocate(DType::kF32, outputs, spec_.vocab_size, gathered_));
    RETURN_IF_ERROR(allocate(DType::kF32, outputs, spec_.vocab_size, logits_));
  }
  return absl::OkStatus();
}

absl::Status Model::MakeRopeTables() {
  const size_t half = spec_.head_dim / 2, bytes = limits_.max_positions * half * sizeof(float);
  const std::vector<float> frequencies = spec_.RopeInverseFrequencies();
  for (DeviceBuffer* table : {&rope_cos_, &rope_sin_}) {
    ASSIGN_OR_RETURN(*table, parts_.device->Allocate(bytes, "rope tables"));
    ASSIGN_OR_RETURN(std::byte * staged, parts_.device->Stage(table->data(), bytes));
    float* out = reinterpret_cast<float*>(staged);
    for (int p = 0; p < limits_.max_positions; ++p) {
      for (const float frequency : frequencies) {
        const float angle = static_cast<float>(p) * frequency;
        *out++ = table == &rope_cos_ ? std::cos(angle) : std::sin(angle);
      }
    }
    RETURN_IF_ERROR(parts_.device->WriteBack());
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
  return parts_.ops->BeginStep({batch.token_ids, batch.positions, rows_,
                                lora_batch_.Build(runs_, tokens), batch.logit_tokens,
                                /*by_layer=*/batch.before_layer != nullptr});
}

absl::StatusOr<const float*> Model::Forward(const ForwardBatch& batch) {
  last_step_ = {};
  if (batch.token_ids.empty()) return nullptr;
  RETURN_IF_ERROR(CheckBatch(batch));
  RETURN_IF_ERROR(BeginStep(batch));
  bool replayed = true;
  RETURN_IF_ERROR(parts_.ops->Run([this, &replayed, &batch] {
    replayed = false;
    return RunStep(batch.before_layer);
  }));
  if (replayed) parts_.communicator->CountReplay(collectives_[StepKey()]);
  ASSIGN_OR_RETURN(last_step_.ops, parts_.ops->EndStep());
  if (batch.logit_tokens.empty() || tp_rank_ != 0) return nullptr;
  const DeviceBuffer& logits = tp_.tp_size() > 1 ? logits_ : partial_logits_;
  return logits.as<const float>();
}

std::array<int, 3> Model::StepKey() const {
  return {parts_.ops->num_tokens(), parts_.ops->num_outputs(), parts_.ops->exchange_width()};
}

absl::Status Model::RunCountedStep() {
  const CollectiveStats before = parts_.communicator->stats();
  RETURN_IF_ERROR(RunStep(nullptr));
  collectives_[StepKey()] = parts_.communicator->stats().Since(before);
  return absl::OkStatus();
}

absl::Status Model::RunStep(const std::function<absl::Status(int layer)>& before_layer) {
  parts_.ops->Embed(parts_.weights->embedding(), tp_.shards[tp_rank_].vocab.begin,
                    residual_.as<float>());
  if (tp_.tp_size() > 1) {
    const size_t size = static_cast<size_t>(parts_.ops->num_tokens()) * spec_.hidden_size;
    RETURN_IF_ERROR(parts_.communicator->AllReduceSum(residual_.data(), size, DType::kF32));
  }
  LoraDelta down;
  for (int layer = 0; layer < spec_.num_layers; ++layer) {
    if (before_layer) RETURN_IF_ERROR(before_layer(layer));
    RETURN_IF_ERROR(RunLayer(layer, down));
  }
  if (parts_.ops->num_outputs() == 0) return absl::OkStatus();
  return ComputeLogits(down);
}

// `down`: what LoRA adds to delta_, which the block before left.
absl::Status Model::RunLayer(int layer, LoraDelta& down) {
  const LayerWeights& w = parts_.weights->layers()[layer];
  if (layer == 0) {  // follows the embedding
    parts_.ops->AddRmsNorm(residual_.as<float>(), nullptr, {}, w.input_norm, spec_.rms_norm_eps,
                           spec_.hidden_size, /*outputs_only=*/false, hidden_.data());
  } else {
    RETURN_IF_ERROR(AddBlock(down, w.input_norm, /*outputs_only=*/false));
  }
  LoraDelta output;
  RETURN_IF_ERROR(RunAttention(layer, output));
  RETURN_IF_ERROR(AddBlock(output, w.post_norm, /*outputs_only=*/false));
  return RunMlp(layer, down);
}

absl::Status Model::RunAttention(int layer, LoraDelta& output) {
  const LayerWeights& w = parts_.weights->layers()[layer];
  const int q = shape_.num_heads * shape_.head_dim;
  const int kv = shape_.num_kv_heads * shape_.head_dim;
  void* qkv = wide_.data();
  void* context = narrow_.data();
  const LoraTarget inputs[] = {{Module::kQ, 0, q}, {Module::kK, q, kv}, {Module::kV, q + kv, kv}};
  const LoraDelta lora = parts_.ops->LoraShrink(layer, inputs, spec_.hidden_size, hidden_.data());
  parts_.ops->Linear(hidden_.data(), w.qkv, w.qkv_bias, qkv);
  RETURN_IF_ERROR(CompleteShrink(lora));
  const RopeAndKv rope{rope_cos_.as<float>(), rope_sin_.as<float>(), w.q_norm, w.k_norm,
                       spec_.rms_norm_eps};
  parts_.ops->RopeWriteKv(layer, shape_, rope, lora, qkv);
  parts_.ops->Attention(layer, shape_, qkv, context);
  const LoraTarget outputs[] = {RowParallelTarget(Module::kO)};
  output = parts_.ops->LoraShrink(layer, outputs, q, context);
  parts_.ops->Linear(context, w.o, nullptr, delta_.data());
  return CompleteShrink(output);
}

absl::Status Model::RunMlp(int layer, LoraDelta& output) {
  const LayerWeights& w = parts_.weights->layers()[layer];
  const int ffn = tp_.shards[tp_rank_].ffn.size();
  void* gate_up = wide_.data();
  void* product = narrow_.data();
  const LoraTarget inputs[] = {{Module::kGate, 0, ffn}, {Module::kUp, ffn, ffn}};
  const LoraDelta lora = parts_.ops->LoraShrink(layer, inputs, spec_.hidden_size, hidden_.data());
  if (!parts_.ops->LinearSiluMul(hidden_.data(), w.gate_up, lora, ffn, gate_up, product)) {
    parts_.ops->Linear(hidden_.data(), w.gate_up, nullptr, gate_up);
    RETURN_IF_ERROR(CompleteShrink(lora));
    parts_.ops->SiluMul(gate_up, lora, ffn, product);
  }
  const LoraTarget outputs[] = {RowParallelTarget(Module::kDown)};
  output = parts_.ops->LoraShrink(layer, outputs, ffn, product);
  parts_.ops->Linear(product, w.down, nullptr, delta_.data());
  return CompleteShrink(output);
}

LoraTarget Model::RowParallelTarget(Module module) const {
  const Range slice = LoraOutputSlice(spec_.hidden_size, tp_.tp_size(), tp_rank_);
  return {module, 0, spec_.hidden_size, slice.begin, slice.size()};
}

// One collective for what the fully sharded adapters of the step lack at these modules; which ones
// they are follows from the plan, so every rank knows it.
absl::Status Model::CompleteShrink(const LoraDelta& lora) {
  if (tp_.tp_size() == 1) return absl::OkStatus();
  const LoraExchange exchange = parts_.ops->LoraPack(lora);
  if (exchange.kind == LoraExchange::Kind::kNone) return absl::OkStatus();
  if (exchange.done) {
    const bool sum = exchange.kind == LoraExchange::Kind::kSum;
    const size_t bytes = exchange.floats * sizeof(float);
    parts_.communicator->Count(sum ? CollectiveOp::kAllReduce : CollectiveOp::kAllGather,
                               sum ? bytes : bytes * tp_.tp_size());
    return absl::OkStatus();
  }
  if (exchange.kind == LoraExchange::Kind::kSum) {
    RETURN_IF_ERROR(parts_.communicator->AllReduceSum(exchange.data, exchange.floats, DType::kF32));
  } else {
    const std::vector<size_t> counts(tp_.tp_size(), exchange.floats);
    RETURN_IF_ERROR(parts_.communicator->AllGather(exchange.data + tp_rank_ * exchange.floats,
                                                   counts, exchange.data, DType::kF32));
  }
  parts_.ops->LoraUnpack(lora, exchange);
  return absl::OkStatus();
}

// LoRA's partial results of row-parallel modules join the base's: one collective for both.
absl::Status Model::AddBlock(const LoraDelta& lora, const float* weight, bool outputs_only) {
  Ops& ops = *parts_.ops;
  const float eps = spec_.rms_norm_eps;
  const int n = spec_.hidden_size;
  float* const residual = residual_.as<float>();
  if (tp_.tp_size() == 1) {
    ops.AddRmsNorm(residual, delta_.data(), lora, weight, eps, n, outputs_only, hidden_.data());
    return absl::OkStatus();
  }
  const size_t size = static_cast<size_t>(ops.num_tokens()) * n;
  if (ops.SumAddRmsNorm(residual, delta_.data(), lora, weight, eps, n, outputs_only,
                        hidden_.data())) {
    parts_.communicator->Count(CollectiveOp::kAllReduce, size * DTypeBytes(ops.activation_type()));
    return absl::OkStatus();
  }
  ops.LoraExpand(lora, n, delta_.data());
  RETURN_IF_ERROR(parts_.communicator->AllReduceSum(delta_.data(), size, ops.activation_type()));
  ops.AddRmsNorm(residual, delta_.data(), {}, weight, eps, n, outputs_only, hidden_.data());
  return absl::OkStatus();
}

absl::Status Model::ComputeLogits(const LoraDelta& down) {
  RETURN_IF_ERROR(AddBlock(down, parts_.weights->final_norm(), /*outputs_only=*/true));
  parts_.ops->Head(hidden_.data(), parts_.weights->head(), partial_logits_.as<float>());
  return tp_.tp_size() == 1 ? absl::OkStatus() : GatherLogits();
}

absl::Status Model::GatherLogits() {
  const size_t outputs = parts_.ops->num_outputs();
  std::vector<size_t> counts;
  std::vector<int> widths;
  for (const TpShard& shard : tp_.shards) {
    counts.push_back(outputs * shard.vocab.size());
    widths.push_back(shard.vocab.size());
  }
  // The parts of one row are that row.
  float* const gathered = (outputs == 1 ? logits_ : gathered_).as<float>();
  RETURN_IF_ERROR(parts_.communicator->Gather(partial_logits_.data(), counts, gathered, DType::kF32,
                                              /*root=*/0));
  if (tp_rank_ == 0 && outputs > 1) {
    parts_.ops->JoinLogits(widths, gathered_.as<float>(), logits_.as<float>());
  }
  return absl::OkStatus();
}

}  // namespace rootstock
