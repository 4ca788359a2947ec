#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/tokenizer/component_loaders.h"

namespace rootstock {
namespace {

absl::StatusOr<Vocab> LoadVocab(const JsonNode& node) {
  if (!node.IsObject()) return node.Invalid("expected an object");
  Vocab vocab;
  vocab.reserve(node.value().size());
  absl::flat_hash_set<int32_t> ids;
  ids.reserve(node.value().size());
  for (const auto& [token, value] : node.value().items()) {
    const JsonNode entry(value, absl::StrCat(node.path(), "[\"", token, "\"]"));
    ASSIGN_OR_RETURN(const int64_t id, entry.AsInteger(0, kMaxTokenId));
    if (!ids.insert(static_cast<int32_t>(id)).second) {
      return entry.Invalid(absl::StrCat("another token has id ", id, " too"));
    }
    vocab.emplace(token, static_cast<int32_t>(id));
  }
  return vocab;
}

// "left right" in old files, ["left", "right"] in new ones.
absl::StatusOr<std::pair<std::string, std::string>> LoadMerge(const nlohmann::json& value,
                                                              const JsonNode& list, size_t i) {
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  } else if (value.is_array() && value.size() == 2 && value[0].is_string() &&
             value[1].is_string()) {
    return std::pair(value[0].get<std::string>(), value[1].get<std::string>());
  }
  return JsonNode(value, absl::StrCat(list.path(), "[", i, "]")).Invalid("expected two tokens");
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> LoadMerges(const JsonNode& node) {
  if (!node.value().is_array()) return node.Invalid("expected an array");
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(node.value().size());
  for (const nlohmann::json& value : node.value()) {
    // The header line of merges.txt, which old converters copied.
    if (value.is_string() && value.get_ref<const std::string&>().starts_with("#version")) continue;
    ASSIGN_OR_RETURN(auto merge, LoadMerge(value, node, merges.size()));
    merges.push_back(std::move(merge));
  }
  return merges;
}

absl::Status CheckModelType(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode type, node.Member("type"));
  ASSIGN_OR_RETURN(const JsonNode merges, node.Member("merges"));
  if (!type.IsNull()) {
    ASSIGN_OR_RETURN(const std::string name, type.AsString());
    if (name != "BPE") return type.Unsupported(name, "only BPE models are built in");
  } else if (merges.IsNull()) {
    return type.Unsupported("", "neither a type nor merges: only BPE models are built in");
  }
  ASSIGN_OR_RETURN(const JsonNode dropout, node.Member("dropout"));
  if (!dropout.IsNull() && !(dropout.value().is_number() && dropout.value() == 0)) {
    return dropout.Unsupported("", "random tokenization is for training");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Bpe> LoadBpe(const JsonNode& node) {
  RETURN_IF_ERROR(CheckModelType(node));
  BpeConfig config;
  ASSIGN_OR_RETURN(const JsonNode vocab, node.Member("vocab"));
  ASSIGN_OR_RETURN(config.vocab, LoadVocab(vocab));
  ASSIGN_OR_RETURN(const JsonNode merges, node.Member("merges"));
  ASSIGN_OR_RETURN(config.merges, LoadMerges(merges));
  ASSIGN_OR_RETURN(const JsonNode unk, node.Member("unk_token"));
  if (!unk.IsNull()) {
    ASSIGN_OR_RETURN(config.unk_token, unk.AsString());
  }
  ASSIGN_OR_RETURN(config.continuing_subword_prefix, node.String("continuing_subword_prefix", ""));
  ASSIGN_OR_RETURN(config.end_of_word_suffix, node.String("end_of_word_suffix", ""));
  ASSIGN_OR_RETURN(config.fuse_unk, node.Bool("fuse_unk", false));
  ASSIGN_OR_RETURN(config.byte_fallback, node.Bool("byte_fallback", false));
  ASSIGN_OR_RETURN(config.ignore_merges, node.Bool("ignore_merges", false));
  absl::StatusOr<Bpe> bpe = Bpe::Create(std::move(config));
  if (!bpe.ok()) return node.Invalid(std::string(bpe.status().message()));
  return bpe;
}

absl::StatusOr<std::vector<AddedToken>> LoadAddedTokens(const JsonNode& node, const Bpe& bpe) {
  std::vector<AddedToken> tokens;
  if (node.IsNull()) return tokens;
  ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, node.Elements());
  Vocab added;
  // The reference numbers tokens that the vocabulary lacks on from its size, whatever the file
  // says.
  auto next = static_cast<int32_t>(bpe.vocab().size());
  for (const JsonNode& element : elements) {
    AddedToken token;
    ASSIGN_OR_RETURN(const int64_t id, element.Integer("id", 0, kMaxTokenId));
    token.id = static_cast<int32_t>(id);
    ASSIGN_OR_RETURN(token.content, element.String("content"));
    ASSIGN_OR_RETURN(token.special, element.Bool("special"));
    ASSIGN_OR_RETURN(token.normalized, element.Bool("normalized"));
    ASSIGN_OR_RETURN(token.lstrip, element.Bool("lstrip"));
    ASSIGN_OR_RETURN(token.rstrip, element.Bool("rstrip"));
    ASSIGN_OR_RETURN(token.single_word, element.Bool("single_word"));
    if (token.content.empty()) continue;
    const std::optional<int32_t> known = bpe.TokenToId(token.content);
    if (!added.emplace(token.content, token.id).second) {
      return element.Invalid("the token \"" + token.content + "\" is there twice");
    }
    const int32_t expected = known ? *known : next++;
    if (token.id != expected) {
      return element.Invalid(absl::StrCat("the token \"", token.content, "\" has id ", token.id,
                                          ", where the vocabulary implies ", expected));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace rootstock
