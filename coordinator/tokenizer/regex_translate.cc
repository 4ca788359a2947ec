#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/tokenizer/regex.h"
#include "coordinator/tokenizer/regex_properties.h"

namespace rootstock {
namespace {

// One pass over a pattern. Used on one thread's stack.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (!AtEnd()) {
      RETURN_IF_ERROR(Item());
    }
    return std::move(out_);
  }

 private:
  bool AtEnd() const { return pos_ >= pattern_.size(); }
  char Peek(size_t ahead = 0) const {
    return pos_ + ahead < pattern_.size() ? pattern_[pos_ + ahead] : '\0';
  }
  bool Take(std::string_view literal) {
    if (pattern_.substr(pos_, literal.size()) != literal) return false;
    pos_ += literal.size();
    return true;
  }
  absl::Status Refuse(std::string_view construct) const {
    return absl::UnimplementedError(absl::StrCat(
        "pattern \"", std::string(pattern_), "\": ", std::string(construct), " at byte ", pos_));
  }

  absl::Status Item();
  absl::Status Group();
  absl::Status Interval();
  absl::Status Escape(bool in_class, bool* single);
  absl::Status Property(bool negated);
  absl::Status CodePoint();
  absl::Status Class();
  absl::Status ClassItem(bool* previous_single);
  absl::Status Hyphen(bool* previous_single);

  std::string_view pattern_;
  size_t pos_ = 0;
  int depth_ = 0;  // Of nested classes.
  std::string out_;
};

constexpr int kMaxDepth = 32;

absl::Status Translator::Item() {
  const char c = Peek();
  switch (c) {
    case '\\': {
      bool single = false;
      return Escape(/*in_class=*/false, &single);
    }
    case '[':
      return Class();
    case '(':
      return Group();
    case '{':
      return Interval();
    case '}':
    case ']':
      out_ += '\\';
      break;
    default:
      break;
  }
  out_ += c;
  ++pos_;
  return absl::OkStatus();
}

absl::Status Translator::Group() {
  const bool at_start = pos_ == 0;
  if (!Take("(?")) {
    ++pos_;
    out_ += '(';
    return absl::OkStatus();
  }
  for (std::string_view plain : {":", "=", "!", "<=", "<!", ">"}) {
    if (Take(plain)) {
      out_.append("(?").append(plain);
      return absl::OkStatus();
    }
  }
  std::string flags;
  while (Peek() == 'i' || Peek() == 'm' || Peek() == '-') {
    flags += Peek() == 'm' ? 's' : Peek();  // Ruby's m lets the dot match newlines.
    ++pos_;
  }
  const char last = Peek();
  // In Ruby, (?i) inside a pattern opens a group up to the enclosing one's end, alternatives and
  // all.
  if (flags.empty() || (last != ':' && !(last == ')' && at_start))) return Refuse("group");
  ++pos_;
  absl::StrAppend(&out_, "(?", flags, std::string(1, last));
  return absl::OkStatus();
}

absl::Status Translator::Interval() {
  size_t end = pos_ + 1;
  bool comma = false;
  bool digits = false;
  while (end < pattern_.size() && (absl::ascii_isdigit(pattern_[end]) || pattern_[end] == ',')) {
    if (pattern_[end] == ',' && comma) break;
    (pattern_[end] == ',' ? comma : digits) = true;
    ++end;
  }
  if (!digits || end >= pattern_.size() || pattern_[end] != '}') {  // A literal brace.
    out_ += "\\{";
    ++pos_;
    return absl::OkStatus();
  }
  const std::string body(pattern_.substr(pos_ + 1, end - pos_ - 1));
  absl::StrAppend(&out_, "{", body.front() == ',' ? "0" : "", body, "}");
  pos_ = end + 1;
  if (Peek() == '+') return Refuse("repeated interval");
  if (Peek() == '?' && !comma) return Refuse("optional interval");
  return absl::OkStatus();
}

// At a backslash. *single tells whether the escape stands for one character.
absl::Status Translator::Escape(bool in_class, bool* single) {
  ++pos_;
  if (AtEnd()) return Refuse("trailing backslash");
  const char c = Peek();
  *single = false;
  ++pos_;
  switch (c) {
    case 'p':
      return Property(false);
    case 'P':
      return Property(true);
    case 's':
      out_ += "\\p{White_Space}";
      return absl::OkStatus();
    case 'S':
      out_ += "\\P{White_Space}";
      return absl::OkStatus();
    case 'd':
    case 'D':
      out_ += *PropertySet("Nd", c == 'D');
      return absl::OkStatus();
    case 'w':
    case 'W':
      out_ += WordSet(c == 'W');
      return absl::OkStatus();
    case 'h':
      out_ += "[0-9A-Fa-f]";
      return absl::OkStatus();
    case 'H':
      out_ += "[^0-9A-Fa-f]";
      return absl::OkStatus();
    default:
      break;
  }
  *single = true;
  if (c == 'x' || c == 'u') return --pos_, CodePoint();
  if (c == 'v') return out_ += "\\x{B}", absl::OkStatus();
  if (c == 'b' && in_class) return out_ += "\\x{8}", absl::OkStatus();
  if (!in_class && (c == 'b' || c == 'B')) {
    const std::string in = WordSet(false);
    absl::StrAppend(&out_, c == 'b' ? "(?:(?<=" : "(?:(?<!", in, ")(?!", in, ")|",
                    c == 'b' ? "(?<!" : "(?<=", in, ")(?=", in, "))");
    return absl::OkStatus();
  }
  const std::string_view allowed = in_class ? "nrtfae" : "nrtfaeAzZ";
  if (absl::ascii_isalnum(c) && allowed.find(c) == std::string_view::npos) {
    --pos_;
    return Refuse(absl::StrCat("escape \\", std::string(1, c)));
  }
  if (absl::ascii_isascii(c)) out_ += '\\';
  out_ += c;
  return absl::OkStatus();
}

absl::Status Translator::Property(bool negated) {
  const size_t close = pattern_.find('}', pos_);
  if (Peek() != '{' || close == std::string_view::npos) return Refuse("property without name");
  absl::StatusOr<std::string> set =
      PropertySet(pattern_.substr(pos_ + 1, close - pos_ - 1), negated);
  if (!set.ok()) return set.status();
  out_ += *set;
  pos_ = close + 1;
  return absl::OkStatus();
}

// At the x or u of \xHH, \x{H...} or \uHHHH.
absl::Status Translator::CodePoint() {
  const bool u = Peek() == 'u';
  ++pos_;
  std::string digits;
  if (!u && Take("{")) {
    while (absl::ascii_isxdigit(Peek())) digits += pattern_[pos_++];
    if (digits.empty() || !Take("}")) return Refuse("code point");
  } else {
    while (digits.size() < (u ? 4 : 2) && absl::ascii_isxdigit(Peek())) digits += pattern_[pos_++];
    // A lone byte above 7F is part of a character's encoding in Oniguruma.
    if (digits.empty() || (u && digits.size() < 4)) return Refuse("code point");
    if (!u && std::strtoul(digits.c_str(), nullptr, 16) > 0x7F) return Refuse("byte escape");
  }
  absl::StrAppend(&out_, "\\x{", digits, "}");
  return absl::OkStatus();
}

// A class becomes an ICU set; the sides of && become sets of their own.
absl::Status Translator::Class() {
  if (++depth_ > kMaxDepth) return Refuse("deeply nested class");
  ++pos_;
  const bool negated = Take("^");
  const size_t start = out_.size();
  bool intersection = false;
  bool previous_single = false;
  if (Take("]")) out_ += "\\]";
  while (!Take("]")) {
    if (AtEnd()) return Refuse("unclosed class");
    if (Take("&&")) {
      out_ += "]&&[";
      intersection = true;
      previous_single = false;
      continue;
    }
    RETURN_IF_ERROR(ClassItem(&previous_single));
  }
  out_.insert(start, absl::StrCat(negated ? "[^" : "[", intersection ? "[" : ""));
  out_ += intersection ? "]]" : "]";
  --depth_;
  return absl::OkStatus();
}

absl::Status Translator::ClassItem(bool* previous_single) {
  const char c = Peek();
  if (c == '[') {
    if (Peek(1) == ':') return Refuse("POSIX bracket");
    *previous_single = false;
    return Class();
  }
  if (c == '\\') return Escape(/*in_class=*/true, previous_single);
  if (c == '-') return Hyphen(previous_single);
  if (absl::ascii_ispunct(c)) out_ += '\\';
  out_ += c;
  ++pos_;
  *previous_single = true;
  return absl::OkStatus();
}

// A range between two characters, else a literal hyphen.
absl::Status Translator::Hyphen(bool* previous_single) {
  ++pos_;
  if (!*previous_single || Peek() == ']' || AtEnd()) {
    out_ += "\\-";
    *previous_single = false;
    return absl::OkStatus();
  }
  if (Peek() == '[' || (Peek() == '&' && Peek(1) == '&')) return Refuse("range without end");
  out_ += '-';
  if (Peek() == '-') {
    out_ += "\\-";
    ++pos_;
  } else {
    RETURN_IF_ERROR(ClassItem(previous_single));
    if (!*previous_single) return Refuse("range to a class");
    // The rest of a multi-byte character.
    while ((Peek() & 0xC0) == 0x80 && !AtEnd()) out_ += pattern_[pos_++];
  }
  *previous_single = false;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> TranslatePattern(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace rootstock
