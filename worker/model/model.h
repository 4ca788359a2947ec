// The decoder on one tp_rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "common/tp/tp.h"
#include "worker/device/device.h"
#include "worker/lora/lora_batch.h"
#include "worker/memory/slab.h"
#include "worker/model/forward.h"
#include "worker/ops/ops.h"
#include "worker/parallel/communicator.h"
#include "worker/weights/model_weights.h"

namespace rootstock {

// Borrowed; all outlive the Model.
struct ModelParts {
  const ModelWeights* weights = nullptr;
  Device* device = nullptr;
  Ops* ops = nullptr;
  const Slab* slab = nullptr;
  Communicator* communicator = nullptr;
};

// Every tp_rank calls Forward with the same batch. *Step thread only.*
class Model {
 public:
  // max_tokens: most tokens of a batch (GroupLimits::max_num_batched_tokens). max_outputs: most
  // logit_tokens of a batch. Workspaces are taken here, once.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const ModelSpec& spec, const TpPlan& tp,
                                                       int tp_rank, const ModelParts& parts,
                                                       int max_tokens, int max_outputs);

  // Logits [batch.logit_tokens.size(), vocab_size] on tp_rank 0, empty on the others; valid until
  // the next call. On return KV of all tokens is in their pages. kInvalidArgument for a batch whose
  // parts contradict one another (checked before any collective); a communicator's error otherwise.
  absl::StatusOr<std::span<const float>> Forward(const ForwardBatch& batch);
  const ForwardStats& last_step() const { return last_step_; }

 private:
  Model(const ModelSpec& spec, const TpPlan& tp, int tp_rank, const ModelParts& parts,
        int max_tokens, int max_outputs);
  absl::Status AllocateWorkspaces();
  absl::Status CheckBatch(const ForwardBatch& batch) const;
  absl::Status BeginStep(const ForwardBatch& batch);
  absl::Status RunLayer(int layer, int tokens);
  absl::Status RunAttention(int layer, int tokens);
  absl::Status RunMlp(int layer, int tokens);
  void ApplyLora(int layer, std::span<const LoraTarget> targets, int in, const float* x, int width,
                 float* out);
  absl::Status ReduceDelta(int tokens);
  absl::Status ComputeLogits(const ForwardBatch& batch);

  const ModelSpec spec_;
  const TpPlan tp_;
  const int tp_rank_;
  const ModelParts parts_;
  const int max_tokens_;
  const int max_outputs_;
  const AttentionShape shape_;

  DeviceBuffer rope_cos_, rope_sin_;  // [max_position, head_dim / 2]
  DeviceBuffer residual_;             // [max_tokens, hidden]
  DeviceBuffer hidden_;               // [max_tokens, hidden]: normalised input of a block
  DeviceBuffer delta_;                // [max_tokens, hidden]: output of a block
  DeviceBuffer wide_;                 // [max_tokens, max(qkv, gate_up)]
  DeviceBuffer narrow_;               // [max_tokens, max(heads · head_dim, ffn)]
  DeviceBuffer partial_logits_;       // [max_outputs, vocab range]
  DeviceBuffer gathered_;             // tp_rank 0 of several: parts of all ranks, one by one
  DeviceBuffer logits_;               // tp_rank 0 of several: [max_outputs, vocab]

  LoraBatch lora_batch_;
  std::vector<AdapterRun> runs_;
  std::vector<SequenceView> rows_;
  ForwardStats last_step_;
};

}  // namespace rootstock
