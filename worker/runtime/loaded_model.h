// The model that a worker serves: weights, slab and decoder of one tp_rank.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "common/tp/tp.h"
#include "worker/device/cpu_device.h"
#include "worker/memory/slab.h"
#include "worker/model/model.h"
#include "worker/ops/cpu_ops.h"
#include "worker/runtime/step_model.h"
#include "worker/weights/model_weights.h"

namespace rootstock {

struct ModelSource {
  std::filesystem::path dir;
  bool dummy = false;          // --load-format dummy: only config.json is read
  DType dtype = DType::kBF16;  // weights at rest
};

// What --dtype auto stands for: the type of the files' embedding; f16 is kept as f32, exactly.
absl::StatusOr<DType> DTypeOfFiles(const std::filesystem::path& model_dir);

// Without reading the weights themselves; see ModelWeights::fingerprint.
absl::StatusOr<Digest> FingerprintOf(const ModelSource& source, const ModelSpec& spec);

// *Step thread only.*
class LoadedModel : public StepModel {
 public:
  // Of KV and adapters: PROTOCOL §6's device type on the CPU.
  static constexpr DType kComputeType = DType::kF32;

  // Where this node keeps an adapter's canonical content.
  using PathOf = std::function<std::filesystem::path(const Digest&)>;

  // Reads this tp_rank's slices, with progress in the log. `communicator` is borrowed.
  static absl::StatusOr<std::unique_ptr<LoadedModel>> Create(
      const ModelSource& source, const ModelSpec& spec, const TpPlan& tp, int threads,
      const PageGeometry& geometry, Communicator& communicator, PathOf path_of);

  const StepModelInfo& info() const override { return info_; }
  absl::Status Prepare(int max_tokens, int max_outputs, int max_positions) override;
  absl::StatusOr<std::span<const float>> Forward(const ForwardBatch& batch) override;
  const ForwardStats& last_forward() const override { return model_->last_step(); }
  absl::StatusOr<std::unique_ptr<DeviceAdapter>> Load(const LoadAdapter& load) override;

  uint64_t weight_bytes() const { return weights_->device_bytes(); }

 private:
  LoadedModel(const ModelSpec& spec, const TpPlan& tp, int tp_rank, int threads)
      : spec_(spec), tp_(tp), tp_rank_(tp_rank), device_(threads) {}

  const ModelSpec spec_;
  const TpPlan tp_;
  const int tp_rank_;
  CpuDevice device_;
  StepModelInfo info_;
  PathOf path_of_;
  Communicator* communicator_ = nullptr;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Slab> slab_;
  std::unique_ptr<CpuOps> ops_;
  std::unique_ptr<Model> model_;
  int max_tokens_ = 0;
  int max_outputs_ = 0;
  int max_positions_ = 0;
};

}  // namespace rootstock
