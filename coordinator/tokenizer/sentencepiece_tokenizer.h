// The tokenizer that a SentencePiece model describes.
#pragma once

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace rootstock {

// Errors as Tokenizer::Load.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePieceTokenizer(
    const std::filesystem::path& file);

}  // namespace rootstock
