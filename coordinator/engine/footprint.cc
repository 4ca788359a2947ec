#include "coordinator/engine/footprint.h"

#include <algorithm>

namespace rootstock {

absl::StatusOr<AdapterWays> FindWays(const ModelSpec& model, const LoraSpec& lora, const TpPlan& tp,
                                     LoraShardingPolicy policy, DType dtype, uint32_t page_bytes) {
  AdapterWays out;
  out.tp_size = tp.tp_size();
  for (const LoraModule& m : lora.modules) out.lora_rank = std::max(out.lora_rank, m.lora_rank);
  std::vector<LoraSharding> allowed;
  if (policy != LoraShardingPolicy::kFullySharded) allowed.push_back(LoraSharding::kReplicated);
  if (policy == LoraShardingPolicy::kFullySharded ||
      (policy == LoraShardingPolicy::kAuto && tp.tp_size() > 1)) {
    allowed.push_back(LoraSharding::kFullySharded);
  }
  absl::Status error;
  for (const LoraSharding sharding : allowed) {
    const auto layout = AdapterLayout::Create(model, lora, tp, sharding, dtype, page_bytes);
    if (layout.ok()) {
      out.ways.push_back({layout->id(), layout->num_pages(), sharding, layout->num_pages()});
    } else if (error.ok()) {
      error = layout.status();
    }
  }
  if (out.ways.empty()) return error;
  return out;
}

AdapterFootprint ChooseWay(const AdapterWays& of, uint32_t usable_pages, uint32_t free_pages) {
  if (of.ways.size() == 1) return of.ways[0];
  const AdapterFootprint& replicated = of.ways[0];
  const AdapterFootprint& sharded = of.ways[1];
  ShardingFacts facts{of.lora_rank,  of.tp_size,   replicated.pages,
                      sharded.pages, usable_pages, usable_pages};
  const bool large = ChooseLoraSharding(facts) == LoraSharding::kFullySharded;
  facts.free_pages = free_pages;
  AdapterFootprint out =
      ChooseLoraSharding(facts) == LoraSharding::kFullySharded ? sharded : replicated;
  out.most_pages = large ? sharded.pages : replicated.pages;
  return out;
}

}  // namespace rootstock
