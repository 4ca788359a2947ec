#include "coordinator/tokenizer/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/tokenizer/utf8.h"

namespace rootstock {
namespace {

// The general category by Unicode 16.0, as ICU's mask.
uint32_t CategoryMask(char32_t c) {
  const auto type = static_cast<UCharCategory>(u_charType(static_cast<UChar32>(c)));
  if (type != U_UNASSIGNED) return U_MASK(type);
  size_t count = 0;
  const NewCharacters* table = NewCharacterTable(count);
  const NewCharacters* row = std::lower_bound(
      table, table + count, c, [](const NewCharacters& r, char32_t x) { return r.last < x; });
  if (row == table + count || c < row->first) return U_MASK(U_UNASSIGNED);
  return u_getPropertyValueEnum(UCHAR_GENERAL_CATEGORY_MASK, row->category);
}

// Whether `c` was in Unicode `major`.0 already.
bool AssignedBy(char32_t c, int major) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] != 0 && (age[0] < major || (age[0] == major && age[1] == 0));
}

const icu::Normalizer2* FullNormalizer(NormalForm form, UErrorCode& error) {
  switch (form) {
    case NormalForm::kNfc:
      return icu::Normalizer2::getNFCInstance(error);
    case NormalForm::kNfd:
      return icu::Normalizer2::getNFDInstance(error);
    case NormalForm::kNfkc:
      return icu::Normalizer2::getNFKCInstance(error);
    case NormalForm::kNfkd:
      return icu::Normalizer2::getNFKDInstance(error);
  }
  return nullptr;
}

// Marks in one run above which they are sorted before ICU sees them: it moves each mark back to its
// place one by one, which takes square time in a run's length.
constexpr size_t kLongRun = 64;

// Whether the decomposition of `c` begins with a mark: marks themselves, three vowel signs of class
// 0, and, in compatibility forms, the halfwidth sound marks.
bool IsMark(char32_t c, bool compatibility) {
  if (c == 0xFF9E || c == 0xFF9F) return compatibility;
  return u_getCombiningClass(static_cast<UChar32>(c)) != 0 || c == 0xF73 || c == 0xF75 ||
         c == 0xF81;
}

// Appends the marks of `run`, decomposed and in canonical order.
void AppendSorted(std::string_view run, const icu::Normalizer2& form, std::string& out) {
  struct Mark {
    char32_t character;
    uint8_t combining_class;
  };
  std::vector<Mark> marks;
  const auto add = [&](UChar32 c) {
    marks.push_back({static_cast<char32_t>(c), u_getCombiningClass(c)});
  };
  for (size_t pos = 0; pos < run.size();) {
    const auto c = static_cast<UChar32>(NextCodePoint(run, pos));
    icu::UnicodeString parts;
    if (!form.getDecomposition(c, parts)) {
      add(c);
      continue;
    }
    for (int32_t i = 0; i < parts.length(); i = parts.moveIndex32(i, 1)) add(parts.char32At(i));
  }
  std::stable_sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) {
    return a.combining_class < b.combining_class;
  });
  for (const Mark& mark : marks) AppendUtf8(mark.character, out);
}

// The same text in an equivalent spelling whose long runs of marks are in order.
std::string SortLongRuns(std::string_view text, const icu::Normalizer2& form, bool compatibility) {
  std::string result;
  result.reserve(text.size());
  size_t begin = 0;  // Of the run of marks that ends here.
  size_t length = 0;
  const auto end_run = [&](size_t end) {
    const std::string_view run = text.substr(begin, end - begin);
    if (length > kLongRun) {
      AppendSorted(run, form, result);
    } else {
      result += run;
    }
    length = 0;
  };
  for (size_t pos = 0; pos < text.size();) {
    const size_t here = pos;
    const char32_t c = NextCodePoint(text, pos);
    if (c >= 0x300 && IsMark(c, compatibility) && AssignedBy(c, 9)) {
      ++length;
      continue;
    }
    end_run(here);
    result += text.substr(here, pos - here);
    begin = pos;
  }
  end_run(text.size());
  return result;
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

}  // namespace

absl::StatusOr<std::string> Normalize(std::string_view text, NormalForm form) {
  if (IsAscii(text)) return std::string(text);
  UErrorCode error = U_ZERO_ERROR;
  // Built once; immutable from then on.
  static const icu::UnicodeSet* const known = [] {
    UErrorCode status = U_ZERO_ERROR;
    auto* set = new icu::UnicodeSet(u"[:age=9.0:]", status);
    set->freeze();
    return set;
  }();
  const icu::Normalizer2* full = FullNormalizer(form, error);
  std::string result;
  if (U_SUCCESS(error)) {
    const icu::FilteredNormalizer2 normalizer(*full, *known);
    const bool compatibility = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
    const std::string sorted = SortLongRuns(text, *full, compatibility);
    icu::StringByteSink<std::string> sink(&result, static_cast<int32_t>(sorted.size()));
    normalizer.normalizeUTF8(0, {sorted.data(), static_cast<int32_t>(sorted.size())}, sink, nullptr,
                             error);
  }
  if (U_FAILURE(error)) {
    return absl::InternalError(absl::StrCat("unicode normalization: ", u_errorName(error)));
  }
  return result;
}

std::string Lowercase(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, pos);
    // The one character whose unconditional lower case is two characters.
    if (c == U'\u0130') {
      result += "i\u0307";
    } else {
      AppendUtf8(NewLowercaseOf(u_tolower(static_cast<UChar32>(c))), result);
    }
  }
  return result;
}

bool IsWhitespace(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)); }

bool IsNumber(char32_t c) {
  const bool unicode_17 = (c >= 0x11DE0 && c <= 0x11DE9) || (c >= 0x16FF4 && c <= 0x16FF6);
  return unicode_17 || (CategoryMask(c) & (U_GC_ND_MASK | U_GC_NL_MASK | U_GC_NO_MASK));
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) return c > 0x20 && c < 0x7F && !u_isalnum(static_cast<UChar32>(c));
  if (c == 0x166D || c == 0x111C9) return true;  // Unicode 12 and 11 put them elsewhere.
  return (CategoryMask(c) & U_GC_P_MASK) && AssignedBy(c, 8);
}

bool IsCombiningMark(char32_t c) {
  if (c == 0x1CF2 || c == 0x1CF3) return true;  // Unicode 12 made them letters ...
  if (c == 0x111C9) return false;               // ... and Unicode 11 this one a mark.
  return (CategoryMask(c) & U_GC_M_MASK) && AssignedBy(c, 9);
}

bool IsWordCharacter(char32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_ALPHABETIC) ||
         u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_JOIN_CONTROL) ||
         (CategoryMask(c) & (U_GC_L_MASK | U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK));
}

}  // namespace rootstock
