// Refuses plans that contradict what a tp_rank holds, before anything of them is applied.
#pragma once

#include <map>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/plan.h"
#include "worker/lora/adapter_table.h"
#include "worker/runtime/sequence.h"
#include "worker/runtime/step_model.h"

namespace rootstock {

// A load that has not completed on every tp_rank. Its pages are held.
struct LoadingAdapter {
  CommandId id;
  std::vector<PageId> pages;
  bool in_table = false;  // for eager steps, which follow its copies
};
using LoadingTable = std::map<Digest, LoadingAdapter>;

// Borrowed. Every tp_rank holds the same, so every tp_rank comes to the same answer.
struct PlanContext {
  const SequenceTable* sequences = nullptr;
  const AdapterTable* adapters = nullptr;
  const LoadingTable* loading = nullptr;
  const std::vector<bool>* adapter_pages = nullptr;  // [num_pages]: holds rows, or will
  StepModelInfo model;
  GroupLimits limits;
};

// Errors are kInvalidArgument/invalid_argument and name the row and the field:
// `rows[2].position=17: …`. A missing adapter is kFailedPrecondition, and one that is being loaded
// where the plan is not eager.
absl::Status CheckPlan(const StepPlan& plan, const PlanContext& context);
absl::Status CheckLoad(const LoadAdapter& load, const PlanContext& context);

// Those that the plan's rows run with, each once. Sequences that are not there have none.
std::vector<Digest> AdaptersOf(const StepPlan& plan, const SequenceTable& sequences);

}  // namespace rootstock
