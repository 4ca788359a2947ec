// The tokenizer that a tokenizer.json describes.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace rootstock {

// Errors as Tokenizer::Load.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadJsonTokenizer(const std::filesystem::path& file);
// Of the file's `text`; errors call it `name`.
absl::StatusOr<std::unique_ptr<Tokenizer>> ParseJsonTokenizer(const std::string& text,
                                                              const std::string& name);

}  // namespace rootstock
