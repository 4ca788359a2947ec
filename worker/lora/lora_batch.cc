#include "worker/lora/lora_batch.h"

#include <algorithm>
#include <tuple>

namespace rootstock {

std::span<const LoraGroup> LoraBatch::Build(std::span<const AdapterRun> runs, int num_tokens) {
  members_.clear();
  adapters_.clear();
  depth_.assign(num_tokens, 0);
  for (const AdapterRun& run : runs) {
    const auto known = std::find(adapters_.begin(), adapters_.end(), run.adapter);
    const uint32_t adapter = static_cast<uint32_t>(known - adapters_.begin());
    if (known == adapters_.end()) adapters_.push_back(run.adapter);
    for (int t = run.begin; t < run.end; ++t) {
      members_.push_back({depth_[t]++, adapter, t, run.scale});
    }
  }
  std::sort(members_.begin(), members_.end(), [](const Member& a, const Member& b) {
    return std::tie(a.depth, a.adapter, a.token) < std::tie(b.depth, b.adapter, b.token);
  });
  tokens_.resize(members_.size());
  scales_.resize(members_.size());
  groups_.clear();
  for (size_t begin = 0; begin < members_.size();) {
    const Member& first = members_[begin];
    size_t end = begin;
    for (; end < members_.size() && members_[end].depth == first.depth &&
           members_[end].adapter == first.adapter;
         ++end) {
      tokens_[end] = members_[end].token;
      scales_[end] = members_[end].scale;
    }
    const DeviceAdapter& adapter = *adapters_[first.adapter];
    groups_.push_back({.sites = adapter.sites(),
                       .device_sites = adapter.device_sites(),
                       .tokens = {tokens_.data() + begin, end - begin},
                       .scales = {scales_.data() + begin, end - begin},
                       .fully_sharded = adapter.fully_sharded(),
                       .max_lora_rank = adapter.max_lora_rank(),
                       .modules = adapter.modules()});
    begin = end;
  }
  return groups_;
}

}  // namespace rootstock
