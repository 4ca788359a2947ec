#include "coordinator/tokenizer/normalizer.h"

#include <utility>

#include "common/base/status.h"
#include "coordinator/tokenizer/byte_alphabet.h"
#include "coordinator/tokenizer/utf8.h"

namespace rootstock {

SequenceNormalizer::SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> parts)
    : parts_(std::move(parts)) {}

absl::Status SequenceNormalizer::Apply(std::string& text) const {
  for (const auto& part : parts_) {
    RETURN_IF_ERROR(part->Apply(text));
  }
  return absl::OkStatus();
}

absl::Status UnicodeNormalizer::Apply(std::string& text) const {
  ASSIGN_OR_RETURN(text, Normalize(text, form_));
  return absl::OkStatus();
}

absl::Status LowercaseNormalizer::Apply(std::string& text) const {
  text = Lowercase(text);
  return absl::OkStatus();
}

absl::Status PrependNormalizer::Apply(std::string& text) const {
  if (!text.empty()) text.insert(0, prefix_);
  return absl::OkStatus();
}

absl::Status ReplaceNormalizer::Apply(std::string& text) const {
  ASSIGN_OR_RETURN(std::unique_ptr<Regex::Matcher> matcher, pattern_->NewMatcher());
  std::vector<Span> spans;
  RETURN_IF_ERROR(matcher->Cut(text, spans));
  std::string replaced;
  replaced.reserve(text.size());
  for (const Span& span : spans) {
    if (span.match) {
      replaced += content_;
    } else {
      replaced.append(text, span.begin, span.end - span.begin);
    }
  }
  text = std::move(replaced);
  return absl::OkStatus();
}

absl::Status StripNormalizer::Apply(std::string& text) const {
  size_t begin = 0;
  for (size_t pos = 0; left_ && pos < text.size() && IsWhitespace(NextCodePoint(text, pos));) {
    begin = pos;
  }
  size_t end = begin;  // Behind the last character that is no white space.
  for (size_t pos = begin; right_ && pos < text.size();) {
    if (!IsWhitespace(NextCodePoint(text, pos))) end = pos;
  }
  text = text.substr(begin, right_ ? end - begin : std::string::npos);
  return absl::OkStatus();
}

absl::Status StripAccentsNormalizer::Apply(std::string& text) const {
  std::string kept;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    if (!IsCombiningMark(NextCodePoint(text, pos))) kept.append(text, begin, pos - begin);
  }
  text = std::move(kept);
  return absl::OkStatus();
}

absl::Status ByteLevelNormalizer::Apply(std::string& text) const {
  text = ToByteAlphabet(text);
  return absl::OkStatus();
}

}  // namespace rootstock
