// Places a model's tensors on one tp_rank. Internal to this folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/weights/model_weights.h"
#include "worker/weights/weight_source.h"

namespace rootstock {

// First lists every slice with its destination, then reads them all. *One thread, used once.*
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
  // A matrix of the slices of `modules`, one below the other.
  absl::StatusOr<Matrix> PlanProjection(int layer, const std::vector<Module>& modules);
  absl::StatusOr<Matrix> PlanVocabulary(const std::string& name);
  absl::StatusOr<const float*> PlanNorm(const std::string& name, int n);
  absl::Status ReadAll();

  const ModelSpec& spec_;
  const TpPlan& tp_;
  const int tp_rank_;
  Device& device_;
  const LoadOptions& options_;
  WeightSource& source_;
  std::unique_ptr<ModelWeights> weights_;
  std::vector<Slice> slices_;
};

}  // namespace rootstock
