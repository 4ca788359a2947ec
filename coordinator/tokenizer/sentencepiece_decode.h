// SentencePiece's decoding, one piece at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/tokenizer/sentencepiece_model.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace rootstock {

// How a model decodes. Immutable: read from any thread.
struct SentencePieceDecoding {
  struct Token {
    SentencePieceModel::Kind kind;
    std::string text;  // What it decodes to, spaces written as such; a byte token's byte.
  };
  std::vector<Token> tokens;    // By id.
  bool drops_first_space;       // One space at the beginning of the text is not shown ...
  bool drops_all_first_spaces;  // ... or any number of pieces beginning with one.
};

SentencePieceDecoding DecodingOf(const SentencePieceModel& model);

// `decoding` must outlive it.
std::unique_ptr<DecodeStream> NewSentencePieceStream(const SentencePieceDecoding& decoding);

}  // namespace rootstock
