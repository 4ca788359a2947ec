#include "coordinator/tokenizer/sentencepiece_tokenizer.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/tokenizer/added_tokens.h"
#include "coordinator/tokenizer/json_node.h"
#include "coordinator/tokenizer/sentencepiece_decode.h"
#include "coordinator/tokenizer/sentencepiece_model.h"
#include "coordinator/tokenizer/token_table.h"
#include "coordinator/tokenizer/utf8.h"

namespace rootstock {
namespace {

using Kind = SentencePieceModel::Kind;

// Immutable: called from any thread. Control tokens decode to nothing whatever skip_special says,
// as SentencePiece does it. With parse_special, control tokens written out in the text are cut out
// first and the texts between them are encoded one by one.
class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<SentencePieceModel> model, bool add_bos, bool add_eos)
      : model_(std::move(model)),
        decoding_(DecodingOf(*model_)),
        bos_(add_bos ? model_->BosId() : -1),
        eos_(add_eos ? model_->EosId() : -1) {}

  absl::Status AddTokens() {
    for (int id = 0; id < model_->Size(); ++id) {
      const Kind kind = model_->KindOf(id);
      const bool special = kind == Kind::kControl || kind == Kind::kUnknown;
      tokens_.Set(id, {.content = model_->Piece(id), .special = special});
      if (kind != Kind::kControl) continue;
      RETURN_IF_ERROR(control_.Add({.id = id, .content = model_->Piece(id), .special = true},
                                   model_->Piece(id)));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options) const override;

  std::unique_ptr<DecodeStream> NewDecodeStream(bool skip_special) const override {
    return NewSentencePieceStream(decoding_);
  }
  std::optional<std::string> IdToToken(int32_t id) const override {
    const TokenTable::Entry* token = tokens_.Find(id);
    return token == nullptr ? std::nullopt : std::optional(token->content);
  }
  std::optional<int32_t> TokenToId(std::string_view token) const override {
    return tokens_.Id(token);
  }
  bool IsSpecial(int32_t id) const override {
    const TokenTable::Entry* token = tokens_.Find(id);
    return token != nullptr && token->special;
  }
  std::vector<int32_t> SpecialIds() const override { return tokens_.SpecialIds(); }
  int32_t VocabSize() const override { return tokens_.size(); }

 private:
  std::unique_ptr<SentencePieceModel> model_;
  SentencePieceDecoding decoding_;
  int bos_;  // -1: none is added.
  int eos_;
  AddedTokenMatcher control_;
  TokenTable tokens_;
};

absl::StatusOr<std::vector<int32_t>> SentencePieceTokenizer::Encode(
    std::string_view text, const EncodeOptions& options) const {
  if (const size_t valid = ValidUtf8Prefix(text); valid != text.size()) {
    return InvalidField(Reason::kInvalidArgument, "text", "",
                        absl::StrCat("not valid UTF-8 at byte ", valid));
  }
  std::vector<Piece> pieces;
  control_.Split({std::string(text), -1, true}, !options.parse_special, pieces);
  std::vector<int32_t> ids;
  if (options.add_special_tokens && bos_ >= 0) ids.push_back(bos_);
  for (const Piece& piece : pieces) {
    std::string error;
    if (piece.id >= 0) {
      ids.push_back(piece.id);
    } else if (!model_->Encode(piece.text, ids, error)) {
      return InvalidField(Reason::kInvalidArgument, "text", "", error);
    }
  }
  if (options.add_special_tokens && eos_ >= 0) ids.push_back(eos_);
  return ids;
}

struct Additions {
  bool bos = true;
  bool eos = false;
};

absl::StatusOr<Additions> ReadAdditions(const std::filesystem::path& config) {
  Additions additions;
  std::ifstream stream(config, std::ios::binary);
  if (!stream) return additions;
  try {
    const nlohmann::json document = nlohmann::json::parse(stream);
    const JsonNode root(document, config.string());
    ASSIGN_OR_RETURN(additions.bos, root.Bool("add_bos_token", additions.bos));
    ASSIGN_OR_RETURN(additions.eos, root.Bool("add_eos_token", additions.eos));
  } catch (const nlohmann::json::exception& error) {
    return InvalidField(Reason::kModelInvalid, config.string(), "", error.what());
  }
  return additions;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePieceTokenizer(
    const std::filesystem::path& file) {
  std::string error;
  std::unique_ptr<SentencePieceModel> model = SentencePieceModel::Load(file.string(), error);
  if (model == nullptr) {
    return InvalidField(Reason::kModelInvalid, file.string(), "", error);
  }
  ASSIGN_OR_RETURN(const Additions additions,
                   ReadAdditions(file.parent_path() / "tokenizer_config.json"));
  auto tokenizer =
      std::make_unique<SentencePieceTokenizer>(std::move(model), additions.bos, additions.eos);
  RETURN_IF_ERROR(tokenizer->AddTokens());
  return tokenizer;
}

}  // namespace rootstock
