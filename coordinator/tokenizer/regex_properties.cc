#include "coordinator/tokenizer/regex_properties.h"

#include <unicode/uchar.h>
#include <unicode/uscript.h>

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

// What Unicode 15.1 and 16.0 added to scripts that were there before.
constexpr struct {
  UScriptCode script;
  const char* members;
} kNewScriptMembers[] = {
    {USCRIPT_ARABIC, "\\x{897}\\x{10EC2}-\\x{10EC4}\\x{10EFC}"},
    {USCRIPT_BALINESE, "\\x{1B4E}\\x{1B4F}\\x{1B7F}"},
    {USCRIPT_CYRILLIC, "\\x{1C89}\\x{1C8A}"},
    {USCRIPT_EGYPTIAN_HIEROGLYPHS, "\\x{13460}-\\x{143FA}"},
    {USCRIPT_HAN, "\\x{2EBF0}-\\x{2EE5D}"},
    {USCRIPT_KAWI, "\\x{11F5A}"},
    {USCRIPT_KHITAN_SMALL_SCRIPT, "\\x{18CFF}"},
    {USCRIPT_LATIN, "\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}"},
    {USCRIPT_MYANMAR, "\\x{116D0}-\\x{116E3}"},
};

std::string ScriptSet(const std::string& name, int32_t script, bool negated) {
  std::string members = absl::StrCat("\\p{Script=", name, "}");
  for (const auto& row : kNewScriptMembers) {
    if (row.script == script) members += row.members;
  }
  return Set(negated, members);
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
  const int32_t script = u_getPropertyValueEnum(UCHAR_SCRIPT, key.c_str());
  if (script != UCHAR_INVALID_CODE && script != USCRIPT_COMMON) {
    return ScriptSet(key, script, negated);
  }
  return absl::UnimplementedError(absl::StrCat("pattern property \\p{", key, "}"));
}

std::string WordSet(bool negated) {
  // Oniguruma counts superscript two, three, one and the three vulgar fractions of Latin-1 too.
  return Set(negated, "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xB2\\xB3\\xB9\\xBC-\\xBE" +
                          NewMembers(U_GC_L_MASK | U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK));
}

}  // namespace rootstock
