// Places a model's tensors on one tp_rank. Internal to this folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/weights/model_weights.h"
#include "worker/weights/weight_source.h"

namespace rootstock {

// First lists every slice with its destination, then reads them all. Pages that several ranks of
// the host need are asked for ahead, each by one of them. *One thread, used once.*
class WeightLoader {
 public:
  WeightLoader(const ModelSpec& spec, const TpPlan& tp, int tp_rank, Device& device,
               const LoadOptions& options, WeightSource& source);
  absl::StatusOr<std::unique_ptr<ModelWeights>> Run();

 private:
  struct Slice {
    TensorShape tensor;
    Range rows, cols;
    DType dtype = DType::kF32;
    std::byte* out = nullptr;
  };

  absl::StatusOr<std::byte*> Allocate(size_t elements, DType dtype);
  absl::Status PlanModel();
  absl::Status PlanLayer(int layer);
  absl::Status PlanQkvBias(int layer, LayerWeights& weights);
  TensorShape WeightOf(int layer, Module module) const;
  // A matrix of the slices of `modules`, one below the other.
  absl::StatusOr<Matrix> PlanProjection(int layer, const std::vector<Module>& modules);
  absl::StatusOr<Matrix> PlanVocabulary(const std::string& name);
  absl::StatusOr<const float*> PlanNorm(const std::string& name, int n);
  absl::Status ReadAll();
  absl::Status ReadSlice(const Slice& slice, uint64_t total_bytes);
  uint64_t FileBytes(const Slice& slice) const;
  // From one meeting to the next; the same on every tp_rank.
  int LayersAtOnce() const;
  // Starts this tp_rank's part of what the host's ranks need of these layers.
  void BringShared(int first_layer, int layers);

  const ModelSpec& spec_;
  const TpPlan& tp_;
  const int tp_rank_;
  Device& device_;
  const LoadOptions& options_;
  WeightSource& source_;
  std::unique_ptr<ModelWeights> weights_;
  std::vector<Slice> slices_;        // of the model, then layer by layer
  std::vector<size_t> layer_begin_;  // in slices_
};

}  // namespace rootstock
