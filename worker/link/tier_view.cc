#include "worker/link/tier_view.h"

#include <numeric>

#include "common/wire/plan_wire.h"
#include "rootstock/v1/group.pb.h"

namespace rootstock {
namespace {

uint64_t Sum(const std::map<int, uint64_t>& holders) {
  uint64_t sum = 0;
  for (const auto& [rank, bytes] : holders) sum += bytes;
  return sum;
}

}  // namespace

void TierView::Reset(int ranks, int nodes) {
  ranks_ = ranks;
  nodes_ = nodes;
  held_.clear();
  changes_.clear();
}

bool TierView::IsComplete(const Key& key, const Holders& holders) const {
  return static_cast<int>(holders.size()) >= (key.first == Tier::kHost ? ranks_ : nodes_);
}

void TierView::Apply(int tp_rank, const std::vector<TierChange>& changes) {
  for (const TierChange& change : changes) {
    const Key key{change.adapter.tier, change.adapter.digest};
    Holders& holders = held_[key];
    const bool before = IsComplete(key, holders);
    const uint64_t bytes = Sum(holders);
    if (change.present) holders[tp_rank] = change.adapter.bytes;
    if (!change.present) holders.erase(tp_rank);
    const bool after = IsComplete(key, holders);
    if (after != before) {
      changes_.push_back({{key.second, key.first, after ? Sum(holders) : bytes}, after});
    }
    if (holders.empty()) held_.erase(key);
  }
}

std::vector<TierChange> TierView::TakeChanges() { return std::exchange(changes_, {}); }

std::vector<CachedAdapter> TierView::List() const {
  std::vector<CachedAdapter> out;
  for (const auto& [key, holders] : held_) {
    if (IsComplete(key, holders)) out.push_back({key.second, key.first, Sum(holders)});
  }
  return out;
}

std::string EncodeChanges(const std::vector<TierChange>& changes) {
  Completion carrier;
  carrier.tier_changes = changes;
  v1::Completion wire;
  ToProto(carrier, &wire);
  return wire.SerializeAsString();
}

std::vector<TierChange> DecodeChanges(const std::string& bytes) {
  v1::Completion wire;
  wire.ParseFromString(bytes);
  auto carrier = FromProto(wire);
  return carrier.ok() ? std::move(carrier->tier_changes) : std::vector<TierChange>();
}

}  // namespace rootstock
