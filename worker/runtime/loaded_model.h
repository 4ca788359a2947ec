// The model that a worker serves: weights, slab and decoder of one tp_rank.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "common/base/blob_sink.h"
#include "common/tp/tp.h"
#include "worker/memory/slab.h"
#include "worker/model/model.h"
#include "worker/ops/backend.h"
#include "worker/runtime/step_model.h"
#include "worker/runtime/tier_loader.h"
#include "worker/weights/model_weights.h"

namespace rootstock {

struct ModelSource {
  std::filesystem::path dir;
  bool dummy = false;          // --load-format dummy: only config.json is read
  DType dtype = DType::kBF16;  // weights at rest
};

// Of the files' embedding.
absl::StatusOr<DType> DTypeOfFiles(const std::filesystem::path& model_dir);

// Without reading the weights themselves; see ModelWeights::fingerprint.
absl::StatusOr<Digest> FingerprintOf(const ModelSource& source, const ModelSpec& spec);

// How adapters come to this tp_rank.
struct AdapterTiers {
  // Gives the canonical content in pieces, verified when the end is OK; an error when it is not on
  // this node. *Thread-safe.*
  std::function<absl::Status(const Digest&, const BlobSink&)> read;
  uint64_t host_cache_bytes = uint64_t{64} << 20;
};

// *Step thread only.*
class LoadedModel : public StepModel {
 public:
  // Reads this tp_rank's slices, with progress in the log. `communicator` is borrowed.
  // `peers` as LoadOptions has them.
  // geometry.num_pages 0: the first Prepare makes as many pages as fit beside all that it takes.
  static absl::StatusOr<std::unique_ptr<LoadedModel>> Create(
      const ModelSource& source, const ModelSpec& spec, const TpPlan& tp, Backend backend,
      const PageGeometry& geometry, Communicator& communicator, AdapterTiers tiers,
      const LoadPeers& peers = {});

  const StepModelInfo& info() const override { return info_; }
  absl::Status Prepare(const ModelLimits& limits, int max_logprobs) override;
  TokenSampler& sampler() override { return *backend_.sampler; }
  bool asynchronous() const override { return backend_.asynchronous; }
  uint64_t Mark() override { return backend_.device->Mark(); }
  absl::Status Wait(uint64_t mark) override { return backend_.device->Wait(mark); }
  std::optional<DeviceSpan> SpanOf(uint64_t mark) override { return backend_.device->SpanOf(mark); }
  void NotifyWhenDone(std::function<void()> done) override {
    backend_.device->NotifyWhenDone(std::move(done));
  }
  absl::StatusOr<const float*> Forward(const ForwardBatch& batch) override;
  const ForwardStats& last_forward() const override { return model_->last_step(); }
  AdapterLoader& loader() override { return *loader_; }

  std::optional<DeviceMemoryUse> memory() override;

 private:
  LoadedModel(const ModelSpec& spec, const TpPlan& tp, int tp_rank, Backend backend)
      : spec_(spec), tp_(tp), tp_rank_(tp_rank), backend_(std::move(backend)) {}

  absl::Status MakeLoader(const PageGeometry& geometry, AdapterTiers tiers);
  absl::Status MakePages();
  absl::Status MakeModel(const ModelLimits& limits);
  // Chooses info_.geometry.num_pages, the same on every tp_rank.
  absl::Status PlanPages(const ModelLimits& limits);

  const ModelSpec spec_;
  const TpPlan tp_;
  const int tp_rank_;
  Backend backend_;
  StepModelInfo info_;
  uint64_t free_at_start_ = 0;       // before weights
  uint64_t communicator_bytes_ = 0;  // taken between the backend and this
  Communicator* communicator_ = nullptr;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Slab> slab_;
  std::unique_ptr<CopyLane> lane_;
  std::unique_ptr<HostCache> host_cache_;
  std::unique_ptr<TierLoader> loader_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Model> model_;
  ModelLimits limits_;
};

}  // namespace rootstock
