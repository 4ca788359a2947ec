#include <utility>

#include "common/base/status.h"
#include "coordinator/tokenizer/component_loaders.h"

namespace rootstock {
namespace {

// The ids of the template's special token `name`.
absl::StatusOr<std::vector<int32_t>> TemplateIds(const JsonNode& node, const std::string& name) {
  ASSIGN_OR_RETURN(const JsonNode tokens, node.Member("special_tokens"));
  ASSIGN_OR_RETURN(const JsonNode token, tokens.Member(name));
  if (token.IsNull()) return token.Invalid("the template uses it, but it is not given");
  ASSIGN_OR_RETURN(const JsonNode list, token.Member("ids"));
  ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, list.Elements());
  std::vector<int32_t> ids;
  for (const JsonNode& element : elements) {
    ASSIGN_OR_RETURN(const int64_t id, element.AsInteger(0, kMaxTokenId));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

absl::StatusOr<SpecialAffixes> LoadTemplate(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode single, node.Member("single"));
  ASSIGN_OR_RETURN(const std::vector<JsonNode> pieces, single.Elements());
  SpecialAffixes affixes;
  bool text_seen = false;
  for (const JsonNode& piece : pieces) {
    ASSIGN_OR_RETURN(const JsonNode sequence, piece.Member("Sequence"));
    if (!sequence.IsNull()) {
      ASSIGN_OR_RETURN(const std::string id, sequence.String("id"));
      if (id != "A" || text_seen) return piece.Unsupported(id, "the text must stand there once");
      text_seen = true;
      continue;
    }
    ASSIGN_OR_RETURN(const JsonNode special, piece.Member("SpecialToken"));
    ASSIGN_OR_RETURN(const std::string name, special.String("id"));
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, TemplateIds(node, name));
    std::vector<int32_t>& side = text_seen ? affixes.after : affixes.before;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (!text_seen) return single.Unsupported("", "the text must stand there once");
  return affixes;
}

// The id in a pair like ["</s>", 2].
absl::StatusOr<int32_t> PairId(const JsonNode& node, const std::string& key) {
  ASSIGN_OR_RETURN(const JsonNode member, node.Member(key));
  ASSIGN_OR_RETURN(const std::vector<JsonNode> pair, member.Elements());
  if (pair.size() != 2) return member.Invalid("expected a token and its id");
  ASSIGN_OR_RETURN(const int64_t id, pair[1].AsInteger(0, kMaxTokenId));
  return static_cast<int32_t>(id);
}

absl::StatusOr<SpecialAffixes> LoadSeparators(const JsonNode& node) {
  ASSIGN_OR_RETURN(const int32_t cls, PairId(node, "cls"));
  ASSIGN_OR_RETURN(const int32_t sep, PairId(node, "sep"));
  return SpecialAffixes{{cls}, {sep}};
}

absl::StatusOr<SpecialAffixes> LoadAffixes(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode list, node.Member("processors"));
  ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, list.Elements());
  SpecialAffixes affixes;
  bool adds = false;
  for (const JsonNode& element : elements) {
    ASSIGN_OR_RETURN(const std::string type, element.String("type"));
    if (type == "ByteLevel") continue;
    // The reference would apply a second template to the parts of the first.
    if (adds) return element.Unsupported(type, "only one processor may add tokens");
    adds = true;
    ASSIGN_OR_RETURN(affixes, LoadPostProcessor(element));
  }
  return affixes;
}

}  // namespace

absl::StatusOr<SpecialAffixes> LoadPostProcessor(const JsonNode& node) {
  if (node.IsNull()) return SpecialAffixes{};
  ASSIGN_OR_RETURN(const std::string type, node.String("type"));
  if (type == "ByteLevel") return SpecialAffixes{};  // It only moves offsets.
  if (type == "TemplateProcessing") return LoadTemplate(node);
  if (type == "RobertaProcessing" || type == "BertProcessing") return LoadSeparators(node);
  if (type == "Sequence") return LoadAffixes(node);
  return node.Unsupported(type, "this post-processor is not built in");
}

}  // namespace rootstock
