#include "coordinator/memory/eviction.h"

#include <algorithm>
#include <cmath>

namespace rootstock {

std::optional<EvictionPolicy> ParseEvictionPolicy(std::string_view name) {
  if (name == "lru") return EvictionPolicy::kLru;
  if (name == "lfu") return EvictionPolicy::kLfu;
  if (name == "cost") return EvictionPolicy::kCost;
  return std::nullopt;
}

EvictionFacts Touched(EvictionFacts facts, double now) {
  facts.uses *= std::exp2((facts.last_use - now) / kUseHalfLife);
  facts.last_use = now;
  return facts;
}

EvictionFacts UsedAgain(EvictionFacts facts, double now) {
  facts = Touched(facts, now);
  facts.uses += 1;
  return facts;
}

double RefetchSeconds(uint64_t bytes, RefetchFrom from) {
  struct Speed {
    double latency, bytes_a_second;
  };
  const Speed speed = from == RefetchFrom::kHost   ? Speed{1e-4, 2e10}
                      : from == RefetchFrom::kDisk ? Speed{1e-3, 1e9}
                                                   : Speed{2e-2, 2e8};
  return speed.latency + static_cast<double>(bytes) / speed.bytes_a_second;
}

double KeepScore(EvictionPolicy policy, const EvictionFacts& facts) {
  if (policy == EvictionPolicy::kLru) return facts.last_use;
  const double rate = std::log2(std::max(facts.uses, 1e-300)) + facts.last_use / kUseHalfLife;
  if (policy == EvictionPolicy::kLfu) return rate;
  return rate + std::log2(RefetchSeconds(facts.bytes, facts.from));
}

}  // namespace rootstock
