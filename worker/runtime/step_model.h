// What the runtime runs: the decoder of one tp_rank with its pages.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/plan/plan.h"
#include "worker/lora/device_adapter.h"
#include "worker/model/forward.h"
#include "worker/model/model.h"
#include "worker/ops/token_sampler.h"
#include "worker/runtime/adapter_loader.h"

namespace rootstock {

// Fixed when the model is loaded.
struct StepModelInfo {
  int vocab_size = 0;
  int max_position = 0;
  DType compute_dtype = DType::kF32;
  PageGeometry geometry;
};

// Bytes of device memory by use, of a rank on a GPU.
struct DeviceMemoryUse {
  uint64_t weights = 0;
  uint64_t pages = 0;
  uint64_t workspace = 0;  // all else that this process took: activations, kernels, libraries
  uint64_t graphs = 0;     // recorded steps
  uint64_t nccl = 0;       // what the communicator took when it was made
  uint64_t free = 0;
};

// Implementations: LoadedModel, and the unit tests' function of (token, position, adapter).
// *Step thread only.*
class StepModel {
 public:
  virtual ~StepModel() = default;
  virtual const StepModelInfo& info() const = 0;

  // Takes workspaces for such batches, and the sampler's. Called at each Attach, with nothing
  // running; the first may fix info().geometry. RESOURCE_EXHAUSTED/no_memory with the sizes.
  virtual absl::Status Prepare(const ModelLimits& limits, int max_logprobs) = 0;
  virtual TokenSampler& sampler() = 0;
  // Whether Forward and Sample return before they have run, so that the next step may be enqueued
  // behind them.
  virtual bool asynchronous() const = 0;
  // See Device.
  virtual uint64_t Mark() = 0;
  virtual absl::Status Wait(uint64_t mark) = 0;
  virtual std::optional<DeviceSpan> SpanOf(uint64_t mark) = 0;
  // Calls `done`, on any thread, when all that was enqueued so far has run or the device has
  // failed.
  virtual void NotifyWhenDone(std::function<void()> done) = 0;

  // Enqueues a forward pass: logits [batch.logit_tokens.size(), vocab_size] in device memory on
  // tp_rank 0, null on the others; valid until the next call. Issues collectives: an error leaves
  // the group unusable.
  virtual absl::StatusOr<const float*> Forward(const ForwardBatch& batch) = 0;

  // Nothing on the host's processor.
  virtual std::optional<DeviceMemoryUse> memory() = 0;

  // Of the last Forward.
  virtual const ForwardStats& last_forward() const = 0;

  // Beside the steps. No collectives.
  virtual AdapterLoader& loader() = 0;
};

}  // namespace rootstock
