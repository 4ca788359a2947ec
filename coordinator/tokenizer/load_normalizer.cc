#include <utility>

#include "common/base/status.h"
#include "coordinator/tokenizer/component_loaders.h"

namespace rootstock {
namespace {

absl::StatusOr<std::unique_ptr<Normalizer>> LoadNormalizers(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode list, node.Member("normalizers"));
  ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, list.Elements());
  std::vector<std::unique_ptr<Normalizer>> parts;
  for (const JsonNode& element : elements) {
    ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> part, LoadNormalizer(element));
    if (part != nullptr) parts.push_back(std::move(part));
  }
  return std::make_unique<SequenceNormalizer>(std::move(parts));
}

absl::StatusOr<std::unique_ptr<Normalizer>> LoadReplace(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode pattern, node.Member("pattern"));
  ASSIGN_OR_RETURN(std::unique_ptr<Regex> regex, CompilePattern(pattern));
  ASSIGN_OR_RETURN(std::string content, node.String("content"));
  return std::make_unique<ReplaceNormalizer>(std::move(regex), std::move(content));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> LoadNormalizer(const JsonNode& node) {
  if (node.IsNull()) return nullptr;
  ASSIGN_OR_RETURN(const std::string type, node.String("type"));
  if (type == "Sequence") return LoadNormalizers(node);
  if (type == "NFC") return std::make_unique<UnicodeNormalizer>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeNormalizer>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeNormalizer>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeNormalizer>(NormalForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<LowercaseNormalizer>();
  if (type == "StripAccents") return std::make_unique<StripAccentsNormalizer>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Replace") return LoadReplace(node);
  if (type == "Prepend") {
    ASSIGN_OR_RETURN(std::string prefix, node.String("prepend"));
    return std::make_unique<PrependNormalizer>(std::move(prefix));
  }
  if (type == "Strip") {
    ASSIGN_OR_RETURN(const bool left, node.Bool("strip_left"));
    ASSIGN_OR_RETURN(const bool right, node.Bool("strip_right"));
    return std::make_unique<StripNormalizer>(left, right);
  }
  return node.Unsupported(type, "this normalizer is not built in");
}

}  // namespace rootstock
