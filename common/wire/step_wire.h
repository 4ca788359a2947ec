// Steps, the part of the wire that travels with every forward pass; used by plan_wire.cc.
#pragma once

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "rootstock/v1/group.pb.h"

namespace rootstock {

void StepToProto(const StepPlan& in, v1::StepPlan* out);
absl::StatusOr<StepPlan> StepFromProto(const v1::StepPlan& in);

void ResultToProto(const StepResult& in, v1::StepResult* out);
absl::StatusOr<StepResult> ResultFromProto(const v1::StepResult& in);

// PageId and SequenceSlot lists.
template <typename Id, typename Field>
void IdsToProto(const std::vector<Id>& in, Field* out) {
  out->Reserve(static_cast<int>(in.size()));
  for (const Id id : in) out->Add(id.value);
}
template <typename Id, typename Field>
std::vector<Id> IdsFromProto(const Field& in) {
  std::vector<Id> out;
  out.reserve(in.size());
  for (const auto value : in) out.push_back(Id(value));
  return out;
}

}  // namespace rootstock
