// The tokenizer that a tokenizer.json describes.
#pragma once

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace rootstock {

// Errors as Tokenizer::Load.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadJsonTokenizer(const std::filesystem::path& file);

}  // namespace rootstock
