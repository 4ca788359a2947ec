// Tokens by their spelling.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"

namespace rootstock {

// Lets a map of strings be searched with a view.
struct TokenHash {
  using is_transparent = void;
  size_t operator()(std::string_view token) const { return std::hash<std::string_view>()(token); }
};

using Vocab = absl::flat_hash_map<std::string, int32_t, TokenHash, std::equal_to<>>;

}  // namespace rootstock
