// Which of DESIGN §6's two ways an adapter is held on a group.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/layout/adapter_layout.h"

namespace rootstock {

// --lora-sharding
enum class LoraShardingPolicy { kReplicated, kFullySharded, kAuto };
// Of "replicated", "fully-sharded", "auto".
std::optional<LoraShardingPolicy> ParseLoraShardingPolicy(std::string_view name);

// An adapter that is about to be placed on a group that could hold it either way.
struct ShardingFacts {
  int lora_rank = 0;  // the largest of its modules
  int tp_size = 1;
  uint32_t replicated_pages = 0;  // what each way takes on every tp_rank
  uint32_t sharded_pages = 0;
  uint32_t usable_pages = 0;  // of the group's pool
  uint32_t free_pages = 0;    // of them, now
};

// `auto`. Replicated adapters cost no collective, fully sharded ones four a layer in every step
// that names one, whatever the rank; so sharding is for memory, and the first rule that fits
// decides:
//   1. one tp_rank, or no page saved: replicated;
//   2. replicated it would take more than 1/8 of the pool: fully sharded;
//   3. lora_rank < 2 · tp_size: replicated (pieces of a component or none save little);
//   4. at most 1/4 of the pool is free, or would be after it came, and a fifth of its pages or more
//      are saved: fully sharded;
//   5. replicated.
// More pressure never turns fully sharded into replicated. Pure.
LoraSharding ChooseLoraSharding(const ShardingFacts& facts);

}  // namespace rootstock
