// Small files of a model directory besides config.json, and what they share with it.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace rootstock {

// The whole file, at most 1 MiB; nothing when there is none.
absl::StatusOr<std::optional<std::string>> ReadModelFile(const std::filesystem::path& path);

// `eos_token_id` as a number, a list or null. kInvalidArgument/model_invalid for anything else.
// An id outside [0, vocab_size) can never be sampled and is left out.
absl::StatusOr<std::vector<int32_t>> ParseEosTokenIds(const nlohmann::json& config,
                                                      int64_t vocab_size);

}  // namespace rootstock
