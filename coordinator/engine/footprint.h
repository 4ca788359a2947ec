// What an adapter takes on a group's device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/layout/adapter_layout.h"
#include "coordinator/scheduler/lora_sharding.h"

namespace rootstock {

struct AdapterFootprint {
  uint64_t layout_id = 0;
  uint32_t pages = 0;
  LoraSharding sharding = LoraSharding::kReplicated;
  // The most that another choice of sharding, later on, would take.
  uint32_t most_pages = 0;
  uint64_t content_bytes = 0;  // 0: not known
};

inline uint32_t MostPages(const AdapterFootprint& footprint) {
  return std::max(footprint.pages, footprint.most_pages);
}

// The ways in which the policy lets an adapter be held, replicated first; at least one.
struct AdapterWays {
  std::vector<AdapterFootprint> ways;
  int lora_rank = 0;  // the largest of its modules
  int tp_size = 1;
};

// The error of the first way that the policy allows when the group can hold none.
absl::StatusOr<AdapterWays> FindWays(const ModelSpec& model, const LoraSpec& lora, const TpPlan& tp,
                                     LoraShardingPolicy policy, DType dtype, uint32_t page_bytes);

// One of the ways: the only one, or ChooseLoraSharding's.
AdapterFootprint ChooseWay(const AdapterWays& of, uint32_t usable_pages, uint32_t free_pages);

}  // namespace rootstock
