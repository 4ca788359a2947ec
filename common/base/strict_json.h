// JSON from files that strangers wrote: depth and size caps, no duplicate keys.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/status.h"

namespace rootstock {

struct StrictJsonLimits {
  size_t max_bytes = 1 << 20;
  int max_depth = 16;
  size_t max_keys = 1 << 16;  // of one object
  // Reasons of the two ways to fail: not JSON, too large or too deep; and a key given twice.
  Reason invalid = Reason::kConfigInvalid;
  Reason duplicate = Reason::kDuplicate;
};

// Parses `text`, whose file errors call `name`. kInvalidArgument with one of the limits' reasons; a
// number that no double holds is told by its keys ("alpha_pattern[q_proj]=1e999") instead.
absl::StatusOr<nlohmann::json> ParseStrictJson(const std::string& text, const std::string& name,
                                               const StrictJsonLimits& limits);
// The same, keys in the file's order. Finding a key is linear in their number: limit max_keys.
absl::StatusOr<nlohmann::ordered_json> ParseStrictOrderedJson(const std::string& text,
                                                              const std::string& name,
                                                              const StrictJsonLimits& limits);

}  // namespace rootstock
