#include "absl/strings/ascii.h"
#include "common/base/status.h"
#include "coordinator/tokenizer/component_loaders.h"

namespace rootstock {

absl::StatusOr<PatternSpec> LoadPattern(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode regex, node.Member("Regex"));
  const bool is_regex = !regex.IsNull();
  ASSIGN_OR_RETURN(std::string text, node.String(is_regex ? "Regex" : "String"));
  if (text.empty()) return node.Invalid("the pattern is empty");
  return PatternSpec{is_regex, std::move(text)};
}

absl::StatusOr<std::unique_ptr<Regex>> CompilePattern(const JsonNode& node) {
  ASSIGN_OR_RETURN(const PatternSpec spec, LoadPattern(node));
  std::string pattern;
  if (spec.is_regex) {
    pattern = spec.text;
  } else {
    for (char c : spec.text) {
      if (absl::ascii_ispunct(c)) pattern += '\\';
      pattern += c;
    }
  }
  absl::StatusOr<std::unique_ptr<Regex>> regex = Regex::Compile(pattern);
  if (regex.ok()) return regex;
  const std::string message(regex.status().message());
  return absl::IsUnimplemented(regex.status()) ? node.Unsupported("", message)
                                               : node.Invalid(message);
}

}  // namespace rootstock
