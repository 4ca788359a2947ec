// What the runtime runs: the decoder of one tp_rank with its pages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/plan/plan.h"
#include "worker/lora/device_adapter.h"
#include "worker/model/forward.h"

namespace rootstock {

// Fixed when the model is loaded.
struct StepModelInfo {
  int vocab_size = 0;
  int max_position = 0;
  DType compute_dtype = DType::kF32;
  PageGeometry geometry;
};

// Implementations: LoadedModel, and the unit tests' function of (token, position, adapter).
// *Step thread only.*
class StepModel {
 public:
  virtual ~StepModel() = default;
  virtual const StepModelInfo& info() const = 0;

  // Takes workspaces for batches of max_tokens tokens and max_outputs logit rows, and tables for
  // sequences of max_positions (≤ info().max_position) tokens. Called at each Attach; with
  // unchanged numbers nothing is done.
  virtual absl::Status Prepare(int max_tokens, int max_outputs, int max_positions) = 0;

  // Logits [batch.logit_tokens.size(), vocab_size] on tp_rank 0, empty on the others; valid until
  // the next call. Issues collectives: an error leaves the group unusable.
  virtual absl::StatusOr<std::span<const float>> Forward(const ForwardBatch& batch) = 0;

  // Of the last Forward.
  virtual const ForwardStats& last_forward() const = 0;

  // Writes this tp_rank's rows of the adapter into the pages. No collectives; an error (content not
  // on this node, another layout id …) leaves nothing behind but bytes in those pages.
  virtual absl::StatusOr<std::unique_ptr<DeviceAdapter>> Load(const LoadAdapter& load) = 0;
};

}  // namespace rootstock
