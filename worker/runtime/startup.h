// What a rank finds out before it reads weights.
#pragma once

#include <string>

#include "worker/memory/slab.h"
#include "worker/runtime/loaded_model.h"
#include "worker/runtime/worker_options.h"

namespace rootstock {

struct ModelPlan {
  ModelSource source;
  ModelSpec spec;
  TpPlan tp;
  Digest fingerprint;
  PageGeometry geometry;  // what this rank could take
};

// kInvalidArgument for a device that this build has not, a model that is not served, or a tp_size
// that it can't be split into, with the numbers.
absl::StatusOr<ModelPlan> PlanModel(const WorkerOptions& options, int tp_size, int ranks_on_host);

// Version and a hash of this binary: equal when the builds are.
std::string BuildId();

}  // namespace rootstock
