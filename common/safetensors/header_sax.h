// Syntax of a safetensors header, read event by event: no JSON tree of a hostile file is built.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "common/safetensors/header.h"

namespace rootstock {

// Fills tensors (in file order, names may repeat) and metadata. header_invalid, dtype or duplicate.
absl::Status ReadHeaderJson(std::span<const uint8_t> json, const std::string& file,
                            const SafetensorsLimits& limits, SafetensorsHeader& out);

}  // namespace rootstock
