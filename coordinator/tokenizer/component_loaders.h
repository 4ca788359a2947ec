// The parts of tokenizer.json, each from its JSON. Errors name the place: INVALID_ARGUMENT when it
// is malformed, UNIMPLEMENTED when it asks for a component that is not built in.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/tokenizer/added_tokens.h"
#include "coordinator/tokenizer/bpe.h"
#include "coordinator/tokenizer/decode_stage.h"
#include "coordinator/tokenizer/json_node.h"
#include "coordinator/tokenizer/normalizer.h"
#include "coordinator/tokenizer/pre_tokenizer.h"

namespace rootstock {

// Ids put around a text when special tokens are asked for.
struct SpecialAffixes {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

// Ids above it are refused: tables are as long as the largest id.
inline constexpr int64_t kMaxTokenId = (1 << 24) - 1;

// All of them take null for "none".
absl::StatusOr<std::unique_ptr<Normalizer>> LoadNormalizer(const JsonNode& node);
absl::StatusOr<std::unique_ptr<PreTokenizer>> LoadPreTokenizer(const JsonNode& node);
absl::StatusOr<SpecialAffixes> LoadPostProcessor(const JsonNode& node);
absl::StatusOr<std::vector<std::unique_ptr<DecodeStage>>> LoadDecoder(const JsonNode& node);

absl::StatusOr<Bpe> LoadBpe(const JsonNode& node);
absl::StatusOr<std::vector<AddedToken>> LoadAddedTokens(const JsonNode& node, const Bpe& bpe);

// A "pattern" member: {"String": s}, or {"Regex": r} with a pattern in Oniguruma's syntax.
struct PatternSpec {
  bool is_regex;
  std::string text;
};
absl::StatusOr<PatternSpec> LoadPattern(const JsonNode& node);
absl::StatusOr<std::unique_ptr<Regex>> CompilePattern(const JsonNode& node);

}  // namespace rootstock
