#include "coordinator/scheduler/lora_sharding.h"

#include <algorithm>

namespace rootstock {
namespace {

constexpr uint64_t kLargeShare = 8;  // 1/8 of the pool
constexpr int kMinComponents = 2;    // of a tp_rank's piece
constexpr uint64_t kFreeShare = 4;   // 1/4 of the pool
constexpr uint64_t kSavedShare = 5;  // 1/5 of the adapter's pages

}  // namespace

std::optional<LoraShardingPolicy> ParseLoraShardingPolicy(std::string_view name) {
  if (name == "replicated") return LoraShardingPolicy::kReplicated;
  if (name == "fully-sharded") return LoraShardingPolicy::kFullySharded;
  if (name == "auto") return LoraShardingPolicy::kAuto;
  return std::nullopt;
}

LoraSharding ChooseLoraSharding(const ShardingFacts& f) {
  if (f.tp_size == 1 || f.sharded_pages >= f.replicated_pages) return LoraSharding::kReplicated;
  if (f.replicated_pages * kLargeShare > f.usable_pages) return LoraSharding::kFullySharded;
  if (f.lora_rank < kMinComponents * f.tp_size) return LoraSharding::kReplicated;
  const uint64_t saved = f.replicated_pages - f.sharded_pages;
  const uint64_t left = f.free_pages - std::min(f.free_pages, f.replicated_pages);
  if (left * kFreeShare <= f.usable_pages && saved * kSavedShare >= f.replicated_pages) {
    return LoraSharding::kFullySharded;
  }
  return LoraSharding::kReplicated;
}

}  // namespace rootstock
