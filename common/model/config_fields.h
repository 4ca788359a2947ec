// The one table of config.json fields: honoured, harmless, or refused by name unless neutral.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "absl/status/status.h"

namespace rootstock {

// kUnimplemented/unsupported_model naming the first field that changes the mathematics in a way
// that is not served, or that the table doesn't know and that is not null, false or empty.
absl::Status CheckConfigFields(const nlohmann::json& config);

}  // namespace rootstock
