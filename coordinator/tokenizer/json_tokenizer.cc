#include "coordinator/tokenizer/json_tokenizer.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "coordinator/tokenizer/component_loaders.h"
#include "coordinator/tokenizer/token_table.h"
#include "coordinator/tokenizer/utf8.h"

namespace rootstock {
namespace {

// ICU counts in 32 bits.
constexpr size_t kMaxTextBytes = 256 << 20;

struct Parts {
  std::unique_ptr<Normalizer> normalizer;       // May be null.
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // May be null.
  std::optional<Bpe> bpe;
  SpecialAffixes affixes;
  std::vector<std::unique_ptr<DecodeStage>> decoder;
  AddedTokenMatcher plain;       // Added tokens found before normalization ...
  AddedTokenMatcher normalized;  // ... and after it.
  TokenTable tokens;
};

class JsonDecodeStream : public DecodeStream {
 public:
  JsonDecodeStream(const Parts& parts, bool skip_special)
      : tokens_(&parts.tokens), skip_special_(skip_special), stages_(CloneAll(parts.decoder)) {}

  std::string Append(int32_t id) override {
    const TokenTable::Entry* token = tokens_->Find(id);
    if (token == nullptr || (skip_special_ && token->special)) return {};
    std::vector<std::string> pieces{token->ForDecoder()};
    for (const auto& stage : stages_) stage->Push(pieces);
    return absl::StrJoin(pieces, "");
  }

  std::string Flush() override {
    std::vector<std::string> pieces;
    for (const auto& stage : stages_) {
      stage->Push(pieces);
      stage->Finish(pieces);
    }
    return absl::StrJoin(pieces, "");
  }

  std::unique_ptr<DecodeStream> Clone() const override {
    auto copy = std::unique_ptr<JsonDecodeStream>(new JsonDecodeStream());
    copy->tokens_ = tokens_;
    copy->skip_special_ = skip_special_;
    copy->stages_ = CloneAll(stages_);
    return copy;
  }

 private:
  using Stages = std::vector<std::unique_ptr<DecodeStage>>;

  JsonDecodeStream() = default;

  static Stages CloneAll(const Stages& stages) {
    Stages copies;
    for (const auto& stage : stages) copies.push_back(stage->Clone());
    return copies;
  }

  const TokenTable* tokens_ = nullptr;
  bool skip_special_ = false;
  Stages stages_;
};

// Immutable: called from any thread.
class JsonTokenizer : public Tokenizer {
 public:
  explicit JsonTokenizer(Parts parts) : parts_(std::move(parts)) {}

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options) const override;

  std::unique_ptr<DecodeStream> NewDecodeStream(bool skip_special) const override {
    return std::make_unique<JsonDecodeStream>(parts_, skip_special);
  }
  std::optional<std::string> IdToToken(int32_t id) const override {
    const TokenTable::Entry* token = parts_.tokens.Find(id);
    return token == nullptr ? std::nullopt : std::optional(token->content);
  }
  std::optional<int32_t> TokenToId(std::string_view token) const override {
    return parts_.tokens.Id(token);
  }
  bool IsSpecial(int32_t id) const override {
    const TokenTable::Entry* token = parts_.tokens.Find(id);
    return token != nullptr && token->special;
  }
  std::vector<int32_t> SpecialIds() const override { return parts_.tokens.SpecialIds(); }
  int32_t VocabSize() const override { return parts_.tokens.size(); }

 private:
  // Added tokens and normalized text, in order.
  absl::StatusOr<std::vector<Piece>> ExtractAddedTokens(std::string_view text,
                                                        bool special_as_text) const;

  Parts parts_;
};

absl::StatusOr<std::vector<Piece>> JsonTokenizer::ExtractAddedTokens(std::string_view text,
                                                                     bool special_as_text) const {
  std::vector<Piece> raw;
  parts_.plain.Split({std::string(text), -1, true}, special_as_text, raw);
  std::vector<Piece> pieces;
  for (Piece& piece : raw) {
    if (piece.id >= 0) {
      pieces.push_back(std::move(piece));
      continue;
    }
    if (parts_.normalizer != nullptr) RETURN_IF_ERROR(parts_.normalizer->Apply(piece.text));
    parts_.normalized.Split(piece, special_as_text, pieces);
  }
  return pieces;
}

absl::StatusOr<std::vector<int32_t>> JsonTokenizer::Encode(std::string_view text,
                                                           const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return InvalidField(Reason::kTooLarge, "text", absl::StrCat(text.size()),
                        absl::StrCat("more than ", kMaxTextBytes, " bytes"));
  }
  if (const size_t valid = ValidUtf8Prefix(text); valid != text.size()) {
    return InvalidField(Reason::kInvalidArgument, "text", "",
                        absl::StrCat("not valid UTF-8 at byte ", valid));
  }
  ASSIGN_OR_RETURN(std::vector<Piece> pieces, ExtractAddedTokens(text, !options.parse_special));
  if (parts_.pre_tokenizer != nullptr) RETURN_IF_ERROR(parts_.pre_tokenizer->Apply(pieces));
  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids = parts_.affixes.before;
  for (const Piece& piece : pieces) {
    if (piece.id >= 0) {
      ids.push_back(piece.id);
    } else {
      parts_.bpe->Tokenize(piece.text, ids);
    }
  }
  if (options.add_special_tokens) {
    ids.insert(ids.end(), parts_.affixes.after.begin(), parts_.affixes.after.end());
  }
  return ids;
}

absl::Status AddTokens(const JsonNode& node, Parts& parts) {
  for (const auto& [token, id] : parts.bpe->vocab()) parts.tokens.Set(id, {.content = token});
  ASSIGN_OR_RETURN(const std::vector<AddedToken> added, LoadAddedTokens(node, *parts.bpe));
  absl::flat_hash_set<std::string> special;
  for (const AddedToken& token : added) {
    std::string form = token.content;
    if (token.normalized && parts.normalizer != nullptr) {
      RETURN_IF_ERROR(parts.normalizer->Apply(form));
    }
    AddedTokenMatcher& matcher = token.normalized ? parts.normalized : parts.plain;
    absl::Status status = matcher.Add(token, form);
    if (!status.ok()) return node.Invalid(std::string(status.message()));
    // The decoder undoes what the normalizer did, so it is given the normalized form.
    parts.tokens.Set(token.id, {.content = token.content, .decoder_text = form});
    if (token.special) special.insert(token.content);
  }
  parts.tokens.MarkSpecial(special);  // By spelling, as the reference does.
  return absl::OkStatus();
}

absl::Status CheckTopLevel(const JsonNode& root) {
  ASSIGN_OR_RETURN(const std::string version, root.String("version", "1.0"));
  ASSIGN_OR_RETURN(const JsonNode node, root.Member("version"));
  if (version != "1.0") return node.Unsupported(version, "only version 1.0 is known");
  for (const char* key : {"truncation", "padding"}) {
    ASSIGN_OR_RETURN(const JsonNode member, root.Member(key));
    if (!member.IsNull()) return member.Unsupported("", "must be null: prompts are never cut");
  }
  return absl::OkStatus();
}

// What is added around a text comes out of the vocabulary: a model has no row for anything else.
absl::Status CheckAffixes(const JsonNode& post_processor, const Parts& parts) {
  for (const auto* ids : {&parts.affixes.before, &parts.affixes.after}) {
    for (const int32_t id : *ids) {
      if (parts.tokens.Find(id) == nullptr) {
        return post_processor.Invalid(absl::StrCat("adds the id ", id, ", which has no token"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Build(const JsonNode& root) {
  RETURN_IF_ERROR(CheckTopLevel(root));
  Parts parts;
  ASSIGN_OR_RETURN(JsonNode node, root.Member("normalizer"));
  ASSIGN_OR_RETURN(parts.normalizer, LoadNormalizer(node));
  ASSIGN_OR_RETURN(node, root.Member("pre_tokenizer"));
  ASSIGN_OR_RETURN(parts.pre_tokenizer, LoadPreTokenizer(node));
  ASSIGN_OR_RETURN(node, root.Member("post_processor"));
  ASSIGN_OR_RETURN(parts.affixes, LoadPostProcessor(node));
  ASSIGN_OR_RETURN(node, root.Member("decoder"));
  ASSIGN_OR_RETURN(parts.decoder, LoadDecoder(node));
  ASSIGN_OR_RETURN(node, root.Member("model"));
  ASSIGN_OR_RETURN(parts.bpe, LoadBpe(node));
  ASSIGN_OR_RETURN(node, root.Member("added_tokens"));
  RETURN_IF_ERROR(AddTokens(node, parts));
  ASSIGN_OR_RETURN(node, root.Member("post_processor"));
  RETURN_IF_ERROR(CheckAffixes(node, parts));
  return std::make_unique<JsonTokenizer>(std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadJsonTokenizer(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    return InvalidField(Reason::kIoError, file.string(), "", "cannot be opened");
  }
  return ParseJsonTokenizer(std::string(std::istreambuf_iterator<char>(stream), {}), file.string());
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseJsonTokenizer(const std::string& text,
                                                              const std::string& name) try {
  const nlohmann::json document = nlohmann::json::parse(text);
  return Build(JsonNode(document, name));
} catch (const nlohmann::json::exception& error) {
  return InvalidField(Reason::kModelInvalid, name, "", error.what());
}

}  // namespace rootstock
