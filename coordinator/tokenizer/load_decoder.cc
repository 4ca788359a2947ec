#include <utility>

#include "common/base/status.h"
#include "coordinator/tokenizer/component_loaders.h"

namespace rootstock {
namespace {

// Builds the chain of stages; knows whether a stage so far joins the tokens.
class ChainBuilder {
 public:
  absl::Status Add(const JsonNode& node);
  std::vector<std::unique_ptr<DecodeStage>> Take() { return std::move(stages_); }

 private:
  absl::Status AddSequence(const JsonNode& node);
  absl::Status AddMetaspace(const JsonNode& node);
  absl::Status AddReplace(const JsonNode& node);
  absl::Status AddStrip(const JsonNode& node);

  template <typename Stage, typename... Args>
  absl::Status Push(Args&&... args) {
    stages_.push_back(std::make_unique<Stage>(std::forward<Args>(args)...));
    return absl::OkStatus();
  }

  std::vector<std::unique_ptr<DecodeStage>> stages_;
  bool joined_ = false;
};

absl::Status ChainBuilder::AddSequence(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode list, node.Member("decoders"));
  ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, list.Elements());
  for (const JsonNode& element : elements) RETURN_IF_ERROR(Add(element));
  return absl::OkStatus();
}

absl::Status ChainBuilder::AddMetaspace(const JsonNode& node) {
  ASSIGN_OR_RETURN(std::string mark, node.String("replacement"));
  if (mark.empty()) return node.Invalid("replacement is empty");
  ASSIGN_OR_RETURN(const std::string scheme, node.String("prepend_scheme", "always"));
  ASSIGN_OR_RETURN(const bool add_prefix_space, node.Bool("add_prefix_space", true));
  return Push<MetaspaceStage>(std::move(mark), scheme == "never" || !add_prefix_space);
}

absl::Status ChainBuilder::AddReplace(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode member, node.Member("pattern"));
  ASSIGN_OR_RETURN(PatternSpec pattern, LoadPattern(member));
  if (pattern.is_regex) return member.Unsupported("Regex", "a decoder takes strings only");
  ASSIGN_OR_RETURN(std::string content, node.String("content"));
  return Push<ReplaceStage>(std::move(pattern.text), std::move(content), joined_);
}

absl::Status ChainBuilder::AddStrip(const JsonNode& node) {
  ASSIGN_OR_RETURN(std::string content, node.String("content"));
  if (content.empty()) return node.Invalid("content is empty");
  ASSIGN_OR_RETURN(const int64_t start, node.Integer("start", 0, INT32_MAX));
  ASSIGN_OR_RETURN(const int64_t stop, node.Integer("stop", 0, INT32_MAX));
  return Push<StripStage>(std::move(content), static_cast<size_t>(start), static_cast<size_t>(stop),
                          joined_);
}

absl::Status ChainBuilder::Add(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::string type, node.String("type"));
  if (type == "Sequence") return AddSequence(node);
  if (type == "Replace") return AddReplace(node);
  if (type == "Strip") return AddStrip(node);
  if (type == "Fuse") {  // Text in pieces needs no joining: only what follows must know.
    joined_ = true;
    return absl::OkStatus();
  }
  const bool known =
      type == "ByteLevel" || type == "ByteFallback" || type == "Metaspace" || type == "BPEDecoder";
  if (!known) return node.Unsupported(type, "this decoder is not built in");
  if (joined_) return node.Unsupported(type, "this decoder takes tokens, but they are joined");
  if (type == "Metaspace") return AddMetaspace(node);
  if (type == "ByteFallback") return Push<ByteFallbackStage>();
  if (type == "BPEDecoder") {
    ASSIGN_OR_RETURN(std::string suffix, node.String("suffix"));
    if (suffix.empty()) return node.Invalid("suffix is empty");
    return Push<WordSuffixStage>(std::move(suffix));
  }
  joined_ = true;
  return Push<ByteLevelStage>();
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<DecodeStage>>> LoadDecoder(const JsonNode& node) {
  std::vector<std::unique_ptr<DecodeStage>> stages;
  if (node.IsNull()) {
    stages.push_back(std::make_unique<JoinStage>());
    return stages;
  }
  ChainBuilder builder;
  RETURN_IF_ERROR(builder.Add(node));
  return builder.Take();
}

}  // namespace rootstock
