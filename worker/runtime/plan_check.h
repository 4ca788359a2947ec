// Refuses plans that contradict what a tp_rank holds, before anything of them is applied.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/plan.h"
#include "worker/lora/adapter_table.h"
#include "worker/runtime/sequence.h"
#include "worker/runtime/step_model.h"

namespace rootstock {

// Borrowed. Every tp_rank holds the same, so every tp_rank comes to the same answer.
struct PlanContext {
  const SequenceTable* sequences = nullptr;
  const AdapterTable* adapters = nullptr;
  const std::vector<bool>* adapter_pages = nullptr;  // [num_pages]: holds rows of an adapter
  StepModelInfo model;
  GroupLimits limits;
};

// Errors are kInvalidArgument/invalid_argument and name the row and the field:
// `rows[2].position=17: …`. A missing adapter is kFailedPrecondition.
absl::Status CheckPlan(const StepPlan& plan, const PlanContext& context);
absl::Status CheckLoad(const LoadAdapter& load, const PlanContext& context);

}  // namespace rootstock
