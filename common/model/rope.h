// Rotary embedding as config.json writes it, in transformers 4's and 5's forms.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"

namespace rootstock {

// `config` is the whole config.json. kUnimplemented/unsupported_model for a type or parameter that
// is not served, by name; kInvalidArgument/model_invalid for impossible numbers.
absl::StatusOr<RopeSpec> ParseRope(const nlohmann::json& config);

}  // namespace rootstock
