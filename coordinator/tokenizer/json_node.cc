#include "coordinator/tokenizer/json_node.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

const nlohmann::json kNull;
constexpr int kMaxDepth = 32;

}  // namespace

JsonNode::JsonNode(const nlohmann::json& value, std::string path, int depth)
    : value_(&value), path_(std::move(path)), depth_(depth) {}

bool JsonNode::IsNull() const { return value_->is_null(); }
bool JsonNode::IsObject() const { return value_->is_object(); }

absl::Status JsonNode::Invalid(const std::string& text) const {
  return InvalidField(Reason::kModelInvalid, path_, "", text);
}

absl::Status JsonNode::Unsupported(const std::string& value, const std::string& text) const {
  return MakeError(absl::StatusCode::kUnimplemented, Reason::kUnsupportedModel, path_, value, text);
}

absl::StatusOr<JsonNode> JsonNode::Member(const std::string& key) const {
  if (!value_->is_object()) return Invalid("expected an object");
  const auto it = value_->find(key);
  const char* separator = path_.ends_with(".json") ? ":" : ".";
  return JsonNode(it == value_->end() ? kNull : *it, absl::StrCat(path_, separator, key),
                  depth_ + 1);
}

absl::StatusOr<std::vector<JsonNode>> JsonNode::Elements() const {
  if (!value_->is_array()) return Invalid("expected an array");
  if (depth_ > kMaxDepth) return Invalid(absl::StrCat("is nested deeper than ", kMaxDepth));
  std::vector<JsonNode> elements;
  elements.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    elements.emplace_back((*value_)[i], absl::StrCat(path_, "[", i, "]"), depth_ + 1);
  }
  return elements;
}

absl::StatusOr<std::string> JsonNode::AsString() const {
  if (!value_->is_string()) return Invalid("expected a string");
  return value_->get<std::string>();
}

absl::StatusOr<int64_t> JsonNode::AsInteger(int64_t low, int64_t high) const {
  if (!value_->is_number_integer()) return Invalid("expected an integer");
  const bool huge = value_->is_number_unsigned() && value_->get<uint64_t>() > INT64_MAX;
  if (huge || value_->get<int64_t>() < low || value_->get<int64_t>() > high) {
    return Invalid(absl::StrCat(value_->dump(), " is not between ", low, " and ", high));
  }
  return value_->get<int64_t>();
}

absl::StatusOr<std::string> JsonNode::String(const std::string& key,
                                             std::optional<std::string> fallback) const {
  ASSIGN_OR_RETURN(const JsonNode member, Member(key));
  if (member.IsNull() && fallback) return *std::move(fallback);
  return member.AsString();
}

absl::StatusOr<bool> JsonNode::Bool(const std::string& key, std::optional<bool> fallback) const {
  ASSIGN_OR_RETURN(const JsonNode member, Member(key));
  if (member.IsNull() && fallback) return *fallback;
  if (!member.value().is_boolean()) return member.Invalid("expected true or false");
  return member.value().get<bool>();
}

absl::StatusOr<int64_t> JsonNode::Integer(const std::string& key, int64_t low, int64_t high) const {
  ASSIGN_OR_RETURN(const JsonNode member, Member(key));
  return member.AsInteger(low, high);
}

}  // namespace rootstock
