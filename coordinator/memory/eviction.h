// Which idle content leaves a pool first: DESIGN §4. Pure functions from facts to a score.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace rootstock {

// --adapter-eviction
enum class EvictionPolicy {
  kLru,  // used longest ago
  kLfu,  // used least, older uses counting less
  // Cheapest to miss: bytes × refetch time of a byte × probability of use, the seconds that its
  // absence is expected to cost. Bytes count once.
  kCost,
};
// Of "lru", "lfu", "cost".
std::optional<EvictionPolicy> ParseEvictionPolicy(std::string_view name);

// From where evicted content would come back.
enum class RefetchFrom { kHost, kDisk, kRemote };

struct EvictionFacts {
  double last_use = 0;  // seconds, of any clock
  double uses = 0;      // as of last_use, each halved every kUseHalfLife since it was
  uint64_t bytes = 0;
  RefetchFrom from = RefetchFrom::kRemote;
};

constexpr double kUseHalfLife = 300;  // seconds

// `now` in seconds: used until then, and begun to be used once more.
EvictionFacts Touched(EvictionFacts facts, double now);
EvictionFacts UsedAgain(EvictionFacts facts, double now);

// Typical, not measured: what counts is which tier is how many times slower.
double RefetchSeconds(uint64_t bytes, RefetchFrom from);

// The smallest leaves first. Scores of one policy stay comparable as time passes, because all uses
// age alike: a score changes only with its facts.
//   lru:  last_use
//   lfu:  log2(uses) + last_use / half life
//   cost: lfu's + log2(refetch seconds of the bytes)
double KeepScore(EvictionPolicy policy, const EvictionFacts& facts);

}  // namespace rootstock
