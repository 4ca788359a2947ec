// A deterministic model whose next token depends on every earlier token, the adapter, the seed
// and the sample: what a group must answer, computed without pages.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/digest.h"
#include "coordinator/adapters/adapter.h"
#include "coordinator/engine/residency/group_adapters.h"

namespace rootstock::toy {

constexpr int32_t kVocab = 40;
constexpr int32_t kEos = 2;

inline uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15ull + b + 0x7f4a7c15ull;
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9ull;
  return x ^ (x >> 29);
}

// What an adapter's page number i holds.
inline uint64_t AdapterCell(const Digest& d, size_t i) {
  uint64_t word = 0;
  for (int k = 0; k < 8; ++k) word = word << 8 | d.bytes[static_cast<size_t>(k)];
  return Mix(word, i);
}
inline AdapterFootprint FootprintOf(const Digest& d) {
  return {AdapterCell(d, 1000), 1u + d.bytes[5] % 4u};
}
// Half as many pages.
inline AdapterFootprint ShardedFootprintOf(const Digest& d) {
  return {AdapterCell(d, 1001), (FootprintOf(d).pages + 1) / 2, LoraSharding::kFullySharded};
}
// What `auto` chooses from on two ranks.
inline absl::StatusOr<AdapterWays> BothWays(const AdapterContent& content) {
  return AdapterWays{{FootprintOf(content.digest), ShardedFootprintOf(content.digest)}, 16, 2};
}
inline uint64_t AdapterKey(const Digest& d) {
  uint64_t key = 0;
  for (uint32_t i = 0; i < FootprintOf(d).pages; ++i) key = Mix(key, AdapterCell(d, i));
  return key;
}

// KV of a position, given those of all before it. key: 0 for the base.
inline uint64_t Cell(uint64_t context, int32_t token, uint64_t key) {
  return Mix(Mix(context, static_cast<uint64_t>(token)), key);
}
inline int32_t Sample(uint64_t context, uint64_t seed, uint32_t sample, uint32_t position) {
  return static_cast<int32_t>(Mix(Mix(context, seed), Mix(sample, position)) % kVocab);
}

// Tests ask with such a seed when eos shall end the answer, so that a group can count wasted rows.
inline bool EosEnds(uint64_t seed) { return seed >= 1000; }

// The output tokens of an undisturbed run: up to and with eos or the last allowed one.
inline std::vector<int32_t> Expected(const std::vector<int32_t>& prompt, uint64_t key,
                                     uint64_t seed, uint32_t sample, uint32_t max_tokens,
                                     bool ignore_eos) {
  std::vector<int32_t> tokens = prompt;
  uint64_t context = 0;
  size_t done = 0;
  while (tokens.size() < prompt.size() + max_tokens) {
    for (; done < tokens.size(); ++done) context = Mix(context, Cell(context, tokens[done], key));
    tokens.push_back(Sample(context, seed, sample, static_cast<uint32_t>(tokens.size())));
    if (tokens.back() == kEos && !ignore_eos) break;
  }
  return {tokens.begin() + static_cast<long>(prompt.size()), tokens.end()};
}

}  // namespace rootstock::toy
