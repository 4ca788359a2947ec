// Unicode properties and normal forms, as the reference implementation's libraries define them.
//
// They follow different versions of the Unicode standard than ICU: normal forms and combining marks
// 9.0, punctuation 8.0, split patterns and \w 16.0, numbers and lower case 17.0. ICU's data is
// narrowed or widened to these, so that a text gets the ids that the model was trained with.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace rootstock {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

absl::StatusOr<std::string> Normalize(std::string_view text, NormalForm form);
std::string Lowercase(std::string_view text);

bool IsWhitespace(char32_t c);
bool IsNumber(char32_t c);
bool IsPunctuation(char32_t c);
bool IsCombiningMark(char32_t c);
// \w: alphabetic, mark, decimal number, connector punctuation, join control.
bool IsWordCharacter(char32_t c);

// Characters whose general category is newer than an ICU may know: Unicode 15.1 and 16.0.
struct NewCharacters {
  char32_t first;
  char32_t last;
  const char* category;  // Two letters, for example "Lu".
};
// The small letter of a capital that Unicode 15.1 or later added; `c` itself for other characters.
char32_t NewLowercaseOf(char32_t c);

// Ascending. `count` receives the number of rows.
const NewCharacters* NewCharacterTable(size_t& count);

}  // namespace rootstock
