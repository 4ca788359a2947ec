// What the tp_ranks compare before any of them loads weights.
#pragma once

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "worker/link/group_bus.h"

namespace rootstock {

struct RankHello {
  RankInfo rank;
  Digest model_fingerprint;
  std::string model_name;  // for the message of a mismatch
  PageGeometry geometry;   // what this rank asks for; 0 pages: as many as fit
  DType weight_dtype = DType::kBF16;
  std::string group;                // --group
  std::string device_kind = "cpu";  // Device::kind
  std::string nccl = "none";        // NcclVersion, where the group takes NCCL
};

struct Group {
  GroupInfo info;
  PageGeometry geometry;  // the fewest pages of all ranks, the largest page_bytes
};

// The same on every rank. FAILED_PRECONDITION/group_mismatch names the rank that differs from
// tp_rank 0, and both values, or the ranks that share a GPU.
absl::StatusOr<Group> Rendezvous(GroupBus& bus, const RankHello& mine);

}  // namespace rootstock
