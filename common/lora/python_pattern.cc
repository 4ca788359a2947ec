#include "common/lora/python_pattern.h"

#include <unicode/uregex.h>
#include <unicode/ustring.h>

#include <cctype>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr int32_t kTimeLimit = 20;          // ICU's steps, about a millisecond each
constexpr int32_t kStackLimit = 256 << 10;  // bytes of backtracking
constexpr size_t kMaxPatternBytes = 4096;
// Letters that Python's re accepts after a backslash, with the same meaning in ICU.
constexpr char kEscapes[] = "AbBdDsSwWafnrtxuU";

// UTF-8 to UTF-16; nothing when it is not valid.
std::optional<std::vector<UChar>> ToUtf16(const std::string& text) {
  std::vector<UChar> out(text.size() + 1);
  int32_t length = 0;
  UErrorCode error = U_ZERO_ERROR;
  u_strFromUTF8(out.data(), static_cast<int32_t>(out.size()), &length, text.data(),
                static_cast<int32_t>(text.size()), &error);
  if (U_FAILURE(error)) return std::nullopt;
  out.resize(length);
  return out;
}

// Appends what the escape at `in[i]` (a backslash) becomes; false when the languages differ.
bool AppendEscape(const std::string& in, size_t& i, std::string& out) {
  if (i + 1 == in.size()) return false;
  const char c = in[++i];
  if (c == 'Z') {
    out += "\\z";
    return true;
  }
  if (std::isalpha(static_cast<unsigned char>(c)) && std::strchr(kEscapes, c) == nullptr) {
    return false;
  }
  out += '\\';
  out += c;
  return true;
}

// "(?i)" and the like at `i`: Python wants flags for the rest of a pattern at its very beginning.
bool IsLateFlag(const std::string& in, size_t i) {
  if (i == 0 || in.compare(i, 2, "(?") != 0) return false;
  size_t end = i + 2;
  while (end < in.size() && std::isalpha(static_cast<unsigned char>(in[end]))) ++end;
  return end > i + 2 && end < in.size() && in[end] == ')';
}

}  // namespace

std::optional<std::string> PythonToIcu(const std::string& in) {
  std::string out;
  bool in_set = false;
  size_t set_begin = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const char c = in[i];
    if (c == '\\') {
      if (!AppendEscape(in, i, out)) return std::nullopt;
    } else if (in_set) {
      const bool first = i == set_begin || (i == set_begin + 1 && in[set_begin] == '^');
      if (c == ']' && !first) in_set = false;
      // ICU nests sets and has operators on them; Python takes these characters as they are.
      if (c == '[' || c == '&' || (c == ']' && first)) out += '\\';
      if (c == '-' && in.compare(i, 2, "--") == 0) return std::nullopt;
      out += c;
    } else if (c == '[') {
      in_set = true;
      set_begin = i + 1;
      out += c;
    } else if (in.compare(i, 4, "(?P<") == 0) {
      out += "(?<";
      i += 3;
    } else if (in.compare(i, 3, "(?P") == 0 || IsLateFlag(in, i)) {
      return std::nullopt;
    } else if (in.compare(i, 2, "{,") == 0) {
      out += "{0,";
      ++i;
    } else {
      out += c;
    }
  }
  return in_set ? std::nullopt : std::optional<std::string>(out);
}

struct PythonPattern::Impl {
  URegularExpression* regex = nullptr;
  std::string field, pattern;
  std::vector<UChar> text;  // uregex_setText keeps a pointer
  ~Impl() { uregex_close(regex); }

  absl::Status SetText(const std::string& utf8) {
    text = ToUtf16(utf8).value_or(std::vector<UChar>());
    UErrorCode error = U_ZERO_ERROR;
    uregex_setText(regex, text.data(), static_cast<int32_t>(text.size()), &error);
    return Check(error);
  }
  absl::Status Check(UErrorCode error) const {
    if (U_SUCCESS(error)) return absl::OkStatus();
    return InvalidField(Reason::kConfigInvalid, field, pattern,
                        "matching this pattern takes too long");
  }
};

PythonPattern::PythonPattern(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PythonPattern::PythonPattern(PythonPattern&&) noexcept = default;
PythonPattern& PythonPattern::operator=(PythonPattern&&) noexcept = default;
PythonPattern::~PythonPattern() = default;

absl::StatusOr<PythonPattern> PythonPattern::Compile(const std::string& pattern,
                                                     const std::string& field) {
  const auto bad = [&](const std::string& text) {
    return InvalidField(Reason::kConfigInvalid, field, pattern, text);
  };
  if (pattern.size() > kMaxPatternBytes) {
    return bad(absl::StrCat("pattern of more than ", kMaxPatternBytes, " bytes"));
  }
  const auto icu = PythonToIcu(pattern);
  const auto utf16 = icu ? ToUtf16(*icu) : std::nullopt;
  if (!utf16) return bad("pattern is not understood");
  auto impl = std::make_unique<Impl>();
  impl->field = field;
  impl->pattern = pattern;
  UErrorCode error = U_ZERO_ERROR;
  // Without text ICU can't open: an empty pattern has length 0, never -1.
  impl->regex = uregex_open(utf16->data(), static_cast<int32_t>(utf16->size()), 0, nullptr, &error);
  if (U_FAILURE(error)) return bad("pattern is not a valid regular expression");
  uregex_setTimeLimit(impl->regex, kTimeLimit, &error);
  uregex_setStackLimit(impl->regex, kStackLimit, &error);
  RETURN_IF_ERROR(impl->Check(error));
  return PythonPattern(std::move(impl));
}

absl::StatusOr<bool> PythonPattern::FullMatch(const std::string& text) {
  RETURN_IF_ERROR(impl_->SetText(text));
  UErrorCode error = U_ZERO_ERROR;
  const bool matched = uregex_matches(impl_->regex, -1, &error);
  RETURN_IF_ERROR(impl_->Check(error));
  return matched;
}

absl::StatusOr<std::optional<std::string>> PythonPattern::MatchIndex(const std::string& text) {
  RETURN_IF_ERROR(impl_->SetText(text));
  UErrorCode error = U_ZERO_ERROR;
  const bool matched = uregex_lookingAt(impl_->regex, -1, &error);
  RETURN_IF_ERROR(impl_->Check(error));
  if (!matched) return std::optional<std::string>();
  const int32_t group = uregex_groupNumberFromCName(impl_->regex, "idx", -1, &error);
  const int32_t begin = uregex_start(impl_->regex, group, &error);
  const int32_t end = uregex_end(impl_->regex, group, &error);
  RETURN_IF_ERROR(impl_->Check(error));
  std::string out;
  for (int32_t i = begin; i < end; ++i) out.push_back(static_cast<char>(impl_->text[i]));
  return std::optional<std::string>(std::move(out));
}

}  // namespace rootstock
