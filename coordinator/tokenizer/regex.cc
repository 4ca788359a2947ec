#include "coordinator/tokenizer/regex.h"

#include <unicode/regex.h>
#include <unicode/unistr.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/tokenizer/utf8.h"

namespace rootstock {
namespace {

// Ruby's ^ and $ match at every line; lines end with \n only.
constexpr uint32_t kFlags = UREGEX_MULTILINE | UREGEX_UNIX_LINES;
// Bytes of backtracking memory that one match may take.
constexpr int32_t kStackLimit = 64 << 20;

// Follows positions in UTF-16 through the same text in UTF-8. Moves forward only.
class Utf16Cursor {
 public:
  explicit Utf16Cursor(std::string_view text) : text_(text) {}

  size_t ByteAt(int32_t unit) {
    while (unit_ < unit) {
      const size_t length = Utf8Length(text_[byte_]);
      byte_ += length;
      unit_ += length == 4 ? 2 : 1;
    }
    return byte_;
  }

 private:
  std::string_view text_;
  size_t byte_ = 0;
  int32_t unit_ = 0;
};

class IcuMatcher : public Regex::Matcher {
 public:
  explicit IcuMatcher(std::unique_ptr<icu::RegexMatcher> matcher) : matcher_(std::move(matcher)) {}

  absl::Status Cut(std::string_view text, std::vector<Span>& spans) override {
    spans.clear();
    input_ = icu::UnicodeString::fromUTF8({text.data(), static_cast<int32_t>(text.size())});
    matcher_->reset(input_);
    UErrorCode error = U_ZERO_ERROR;
    Utf16Cursor cursor(text);
    size_t done = 0;
    bool any = false;
    while (matcher_->find(error) && U_SUCCESS(error)) {
      const size_t begin = cursor.ByteAt(matcher_->start(error));
      const size_t end = cursor.ByteAt(matcher_->end(error));
      if (begin == end && any && begin == done) continue;  // Not right behind another match.
      if (done != begin) spans.push_back({done, begin, false});
      spans.push_back({begin, end, true});
      done = end;
      any = true;
    }
    if (U_FAILURE(error)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the tokenizer's split pattern cannot be run on this text: ", u_errorName(error)));
    }
    if (done != text.size()) spans.push_back({done, text.size(), false});
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<icu::RegexMatcher> matcher_;
  icu::UnicodeString input_;
};

class IcuRegex : public Regex {
 public:
  explicit IcuRegex(std::unique_ptr<icu::RegexPattern> pattern) : pattern_(std::move(pattern)) {}

  absl::StatusOr<std::unique_ptr<Matcher>> NewMatcher() const override {
    UErrorCode error = U_ZERO_ERROR;
    std::unique_ptr<icu::RegexMatcher> matcher(pattern_->matcher(error));
    if (U_SUCCESS(error)) matcher->setStackLimit(kStackLimit, error);
    if (U_FAILURE(error)) {
      return absl::InternalError(absl::StrCat("regex matcher: ", u_errorName(error)));
    }
    return std::make_unique<IcuMatcher>(std::move(matcher));
  }

 private:
  std::unique_ptr<icu::RegexPattern> pattern_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Regex>> Regex::Compile(std::string_view pattern) {
  absl::StatusOr<std::string> translated = TranslatePattern(pattern);
  if (!translated.ok()) return translated.status();
  UErrorCode error = U_ZERO_ERROR;
  UParseError where;
  std::unique_ptr<icu::RegexPattern> compiled(
      icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(*translated), kFlags, where, error));
  if (U_FAILURE(error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("pattern \"", std::string(pattern), "\": ", u_errorName(error)));
  }
  return std::make_unique<IcuRegex>(std::move(compiled));
}

}  // namespace rootstock
