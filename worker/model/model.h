// The decoder on one tp_rank.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
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

// Of the batches of one attachment.
struct ModelLimits {
  int max_tokens = 0;      // GroupLimits::max_num_batched_tokens
  int max_rows = 0;        // sequences of a batch
  int max_outputs = 0;     // logit_tokens of a batch
  int max_positions = 0;   // of a sequence: GroupLimits::max_model_len
  int num_slots = 0;       // that LastTokenOf may name
  bool rehearsal = false;  // see OpsLimits
  bool record = true;      // false: nothing is recorded, each step is launched anew
  friend bool operator==(const ModelLimits&, const ModelLimits&) = default;
};

// Every tp_rank calls Forward with the same batch. *Step thread only.*
class Model {
 public:
  // Workspaces are taken here, once, and what can be recorded of a step is. limits.max_positions is
  // at most spec.max_position.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const ModelSpec& spec, const TpPlan& tp,
                                                       int tp_rank, const ModelParts& parts,
                                                       const ModelLimits& limits);

  // Enqueues a forward pass. On tp_rank 0 the logits [batch.logit_tokens.size(), vocab_size] in
  // device memory, null on the others or when none are wanted; valid until the next call. Once it
  // has run, KV of all tokens is in their pages. kInvalidArgument for a batch whose parts
  // contradict one another (checked before any collective); a communicator's error otherwise.
  absl::StatusOr<const float*> Forward(const ForwardBatch& batch);
  const ForwardStats& last_step() const { return last_step_; }

 private:
  Model(const ModelSpec& spec, const TpPlan& tp, int tp_rank, const ModelParts& parts,
        const ModelLimits& limits);
  // What needs no other rank.
  absl::Status TakeMemory(const OpsLimits& limits);
  absl::Status AllocateWorkspaces();
  absl::Status MakeRopeTables();
  absl::Status CheckBatch(const ForwardBatch& batch) const;
  absl::Status BeginStep(const ForwardBatch& batch);
  // All operators of the step that Ops has begun; before_layer: of the batch, may be null.
  absl::Status RunStep(const std::function<absl::Status(int layer)>& before_layer);
  // The same, before the first step: what may be recorded and replayed.
  absl::Status RunCountedStep();
  // What the collectives of a step depend on.
  std::array<int, 3> StepKey() const;
  absl::Status RunLayer(int layer, LoraDelta& down);
  absl::Status RunAttention(int layer, LoraDelta& output);
  absl::Status RunMlp(int layer, LoraDelta& output);
  LoraTarget RowParallelTarget(Module module) const;
  absl::Status CompleteShrink(const LoraDelta& lora);
  // The block's output joins the residual: delta_ and `lora` of all ranks; hidden_ = its norm.
  absl::Status AddBlock(const LoraDelta& lora, const float* weight, bool outputs_only);
  absl::Status ComputeLogits(const LoraDelta& down);
  absl::Status GatherLogits();

  const ModelSpec spec_;
  const TpPlan tp_;
  const int tp_rank_;
  const ModelParts parts_;
  const ModelLimits limits_;
  const AttentionShape shape_;

  // Activations are of Ops::activation_type.
  DeviceBuffer rope_cos_, rope_sin_;  // f32 [max_positions, head_dim / 2]
  DeviceBuffer residual_;             // f32 [max_tokens, hidden]
  DeviceBuffer hidden_;               // [max_tokens, hidden]: normalised input of a block
  DeviceBuffer delta_;                // [max_tokens, hidden]: output of a block
  DeviceBuffer wide_;                 // [max_tokens, max(qkv, gate_up)]
  DeviceBuffer narrow_;               // [max_tokens, max(heads · head_dim, ffn)]
  DeviceBuffer partial_logits_;       // f32 [max_outputs, vocab range]
  DeviceBuffer gathered_;             // tp_rank 0 of several: parts of all ranks, one by one
  DeviceBuffer logits_;               // tp_rank 0 of several: f32 [max_outputs, vocab]

  LoraBatch lora_batch_;
  std::vector<AdapterRun> runs_;
  std::vector<SequenceView> rows_;
  ForwardStats last_step_;
  // By StepKey, of what may be replayed.
  std::map<std::array<int, 3>, CollectiveStats> collectives_;
};

}  // namespace rootstock
