#include <optional>
#include <utility>

#include "common/base/status.h"
#include "coordinator/tokenizer/component_loaders.h"
#include "coordinator/tokenizer/unicode.h"
#include "coordinator/tokenizer/utf8.h"

namespace rootstock {
namespace {

// GPT-2's words.
constexpr char kByteLevelPattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

absl::StatusOr<SplitBehavior> LoadBehavior(const JsonNode& node,
                                           std::optional<std::string> fallback) {
  ASSIGN_OR_RETURN(const std::string name, node.String("behavior", std::move(fallback)));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return node.Unsupported(name, "this split behavior is not built in");
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> LoadPreTokenizers(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode list, node.Member("pretokenizers"));
  ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, list.Elements());
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  for (const JsonNode& element : elements) {
    ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizer> part, LoadPreTokenizer(element));
    if (part != nullptr) parts.push_back(std::move(part));
  }
  return std::make_unique<SequencePreTokenizer>(std::move(parts));
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> LoadSplit(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode pattern, node.Member("pattern"));
  ASSIGN_OR_RETURN(std::unique_ptr<Regex> regex, CompilePattern(pattern));
  ASSIGN_OR_RETURN(const SplitBehavior behavior, LoadBehavior(node, std::nullopt));
  ASSIGN_OR_RETURN(const bool invert, node.Bool("invert"));
  return std::make_unique<RegexSplit>(std::move(regex), behavior, invert);
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> LoadByteLevel(const JsonNode& node) {
  ASSIGN_OR_RETURN(const bool add_prefix_space, node.Bool("add_prefix_space"));
  ASSIGN_OR_RETURN(const bool use_regex, node.Bool("use_regex", true));
  std::unique_ptr<RegexSplit> words;
  if (use_regex) {
    ASSIGN_OR_RETURN(std::unique_ptr<Regex> regex, Regex::Compile(kByteLevelPattern));
    words = std::make_unique<RegexSplit>(std::move(regex), SplitBehavior::kIsolated, false);
  }
  return std::make_unique<ByteLevelPreTokenizer>(add_prefix_space, std::move(words));
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> LoadMetaspace(const JsonNode& node) {
  ASSIGN_OR_RETURN(std::string mark, node.String("replacement"));
  if (mark.empty() || Utf8Length(mark[0]) != mark.size()) {
    return node.Invalid("replacement is not one character");
  }
  ASSIGN_OR_RETURN(const std::string scheme, node.String("prepend_scheme", "always"));
  ASSIGN_OR_RETURN(const bool add_prefix_space, node.Bool("add_prefix_space", true));
  ASSIGN_OR_RETURN(const bool split, node.Bool("split", true));
  PrependScheme prepend = PrependScheme::kAlways;
  if (scheme == "never" || !add_prefix_space) {
    prepend = PrependScheme::kNever;
  } else if (scheme == "first") {
    prepend = PrependScheme::kFirst;
  } else if (scheme != "always") {
    return node.Unsupported(scheme, "this prepend_scheme is not built in");
  }
  return std::make_unique<MetaspacePreTokenizer>(std::move(mark), prepend, split);
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> LoadDelimiter(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::string delimiter, node.String("delimiter"));
  if (delimiter.empty() || Utf8Length(delimiter[0]) != delimiter.size()) {
    return node.Invalid("delimiter is not one character");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Regex> regex, Regex::Compile("[" + delimiter + "]"));
  return std::make_unique<RegexSplit>(std::move(regex), SplitBehavior::kRemoved, false);
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> LoadFixedLength(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode member, node.Member("length"));
  int64_t length = 5;
  if (!member.IsNull()) {
    ASSIGN_OR_RETURN(length, member.AsInteger(1, INT32_MAX));
  }
  return std::make_unique<FixedLengthSplit>(static_cast<size_t>(length));
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> Bert() {
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  parts.push_back(std::make_unique<CharacterSplit>(&IsWhitespace, SplitBehavior::kRemoved));
  parts.push_back(std::make_unique<CharacterSplit>(&IsPunctuation, SplitBehavior::kIsolated));
  return std::make_unique<SequencePreTokenizer>(std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreTokenizer>> LoadPreTokenizer(const JsonNode& node) {
  if (node.IsNull()) return nullptr;
  ASSIGN_OR_RETURN(const std::string type, node.String("type"));
  if (type == "Sequence") return LoadPreTokenizers(node);
  if (type == "ByteLevel") return LoadByteLevel(node);
  if (type == "Split") return LoadSplit(node);
  if (type == "Metaspace") return LoadMetaspace(node);
  if (type == "Whitespace") return std::make_unique<WhitespaceSplitWords>();
  if (type == "WhitespaceSplit") {
    return std::make_unique<CharacterSplit>(&IsWhitespace, SplitBehavior::kRemoved);
  }
  if (type == "BertPreTokenizer") return Bert();
  if (type == "CharDelimiterSplit") return LoadDelimiter(node);
  if (type == "FixedLength") return LoadFixedLength(node);
  if (type == "Punctuation") {
    ASSIGN_OR_RETURN(const SplitBehavior behavior, LoadBehavior(node, "Isolated"));
    return std::make_unique<CharacterSplit>(&IsPunctuation, behavior);
  }
  if (type == "Digits") {
    ASSIGN_OR_RETURN(const bool individual, node.Bool("individual_digits"));
    return std::make_unique<CharacterSplit>(
        &IsNumber, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  return node.Unsupported(type, "this pre-tokenizer is not built in");
}

}  // namespace rootstock
