// What a rank finds out, and tells, before it reads weights.
#pragma once

#include <string>

#include "common/plan/plan.h"
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

// "metrics PORT" of tp_rank 0, "tp_rank R metrics PORT" of the others; complete or absent.
void WritePorts(const std::string& file, const GroupInfo& info);

// Version and a hash of this binary: equal when the builds are.
std::string BuildId();

}  // namespace rootstock
