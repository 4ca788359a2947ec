// Typed ids, so that a page can't be passed where a slot is meant.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace rootstock {

// A number with a name of its own. Compares and hashes; arithmetic goes through `value`.
template <typename Tag, typename Rep>
struct TypedId {
  Rep value{};

  TypedId() = default;
  constexpr explicit TypedId(Rep v) : value(v) {}
  friend constexpr auto operator<=>(TypedId, TypedId) = default;

  template <typename H>
  friend H AbslHashValue(H h, TypedId id) {
    return H::combine(std::move(h), id.value);
  }
};

using PageId = TypedId<struct PageIdTag, uint32_t>;        // page of a group's slab; 0 is scratch
using SequenceSlot = TypedId<struct SlotTag, uint32_t>;    // row state on the workers
using CommandId = TypedId<struct CommandIdTag, uint64_t>;  // unique within an epoch, ascending
using RequestNumber = TypedId<struct RequestNumberTag, uint64_t>;  // unique within an incarnation

}  // namespace rootstock

template <typename Tag, typename Rep>
struct std::hash<rootstock::TypedId<Tag, Rep>> {
  size_t operator()(rootstock::TypedId<Tag, Rep> id) const { return std::hash<Rep>{}(id.value); }
};
