// What the host and disk tiers of a whole group hold.
#pragma once

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/plan.h"

namespace rootstock {

// Joins what ranks and nodes tell of theirs: an adapter is on the host tier when every rank has it,
// on the disk tier when every node does. *One thread.*
class TierView {
 public:
  // Forgets all. ranks: told of by TierChanges of the host; nodes: of the disk, by one rank each.
  void Reset(int ranks, int nodes);
  // That rank's.
  void Apply(int tp_rank, const std::vector<TierChange>& changes);
  // Of the group, since the last call, in order.
  std::vector<TierChange> TakeChanges();
  std::vector<CachedAdapter> List() const;

 private:
  using Holders = std::map<int, uint64_t>;  // bytes by tp_rank
  using Key = std::pair<Tier, Digest>;
  bool IsComplete(const Key& key, const Holders& holders) const;

  int ranks_ = 0;
  int nodes_ = 0;
  std::map<Key, Holders> held_;
  std::vector<TierChange> changes_;
};

// For the exchange between ranks.
std::string EncodeChanges(const std::vector<TierChange>& changes);
std::vector<TierChange> DecodeChanges(const std::string& bytes);

}  // namespace rootstock
