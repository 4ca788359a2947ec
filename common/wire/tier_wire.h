// Commands and reports about where adapters lie, the part of the wire that moves no tokens; used by
// plan_wire.cc.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "rootstock/v1/group.pb.h"

namespace rootstock {

absl::StatusOr<LoraSharding> ShardingFromProto(uint32_t in, const std::string& field);

void PrefetchToProto(const PrefetchAdapter& in, v1::PrefetchAdapter* out);
absl::StatusOr<PrefetchAdapter> PrefetchFromProto(const v1::PrefetchAdapter& in);
void DropToProto(const DropAdapter& in, v1::DropAdapter* out);
absl::StatusOr<DropAdapter> DropFromProto(const v1::DropAdapter& in);
void PinToProto(const PinAdapter& in, v1::PinAdapter* out);
absl::StatusOr<PinAdapter> PinFromProto(const v1::PinAdapter& in);

void CachedToProto(const CachedAdapter& in, v1::CachedAdapter* out);
absl::StatusOr<CachedAdapter> CachedFromProto(const v1::CachedAdapter& in,
                                              const std::string& field);

// source, bytes, freed and tier_changes of a completion.
void TiersOfCompletionToProto(const Completion& in, v1::Completion* out);
absl::Status TiersOfCompletionFromProto(const v1::Completion& in, Completion& out);

}  // namespace rootstock
