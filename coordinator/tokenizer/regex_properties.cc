#include "coordinator/tokenizer/regex_properties.h"

#include <unicode/uchar.h>

#include <cstdint>
#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/tokenizer/unicode.h"

namespace rootstock {
namespace {

std::string Range(char32_t first, char32_t last) {
  char text[32];
  std::snprintf(text, sizeof(text), "\\x{%X}-\\x{%X}", static_cast<unsigned>(first),
                static_cast<unsigned>(last));
  return text;
}

// The new characters whose category is in `mask`, as ranges of a set.
std::string NewMembers(uint32_t mask) {
  size_t count = 0;
  const NewCharacters* table = NewCharacterTable(count);
  std::string ranges;
  for (size_t i = 0; i < count; ++i) {
    const auto bit = static_cast<uint32_t>(
        u_getPropertyValueEnum(UCHAR_GENERAL_CATEGORY_MASK, table[i].category));
    if (bit & mask) ranges += Range(table[i].first, table[i].last);
  }
  return ranges;
}

std::string Set(bool negated, std::string_view members) {
  return absl::StrCat(negated ? "[^" : "[", std::string(members), "]");
}

std::string CategorySet(const std::string& name, uint32_t mask, bool negated) {
  std::string members = absl::StrCat("\\p{", name, "}");
  if (mask & U_GC_CN_MASK) {
    const std::string assigned = NewMembers(~uint32_t{U_GC_CN_MASK});
    members = absl::StrCat("[", members, "--[", assigned, "]]");
  }
  return Set(negated, members + NewMembers(mask & ~uint32_t{U_GC_CN_MASK}));
}

}  // namespace

absl::StatusOr<std::string> PropertySet(std::string_view name, bool negated) {
  if (!name.empty() && name.front() == '^') {
    name.remove_prefix(1);
    negated = !negated;
  }
  const std::string key(name);
  const int32_t mask = u_getPropertyValueEnum(UCHAR_GENERAL_CATEGORY_MASK, key.c_str());
  if (mask != UCHAR_INVALID_CODE) return CategorySet(key, static_cast<uint32_t>(mask), negated);
  if (key == "White_Space" || key == "Space") return Set(negated, "\\p{White_Space}");
  if (key == "Alphabetic" || key == "Alpha") {
    return Set(negated, "\\p{Alphabetic}" + NewMembers(U_GC_L_MASK | U_GC_NL_MASK));
  }
  if (u_getPropertyValueEnum(UCHAR_SCRIPT, key.c_str()) != UCHAR_INVALID_CODE) {
    const std::string added = key == "Han" ? Range(0x2EBF0, 0x2EE5D) : "";
    return Set(negated, absl::StrCat("\\p{Script=", key, "}", added));
  }
  return absl::UnimplementedError(absl::StrCat("pattern property \\p{", key, "}"));
}

std::string WordSet(bool negated) {
  // Oniguruma counts superscript two, three, one and the three vulgar fractions of Latin-1 too.
  return Set(negated, "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xB2\\xB3\\xB9\\xBC-\\xBE" +
                          NewMembers(U_GC_L_MASK | U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK));
}

}  // namespace rootstock
