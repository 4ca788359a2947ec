// UTF-8 without tables: walking, checking, and decoding bytes as they arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rootstock {

// Bytes of the character whose first byte is `lead`, in valid UTF-8.
inline size_t Utf8Length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The character at `pos` of valid UTF-8; moves `pos` behind it.
char32_t NextCodePoint(std::string_view text, size_t& pos);

void AppendUtf8(char32_t code_point, std::string& out);

// The offset of the first byte that is not valid UTF-8 (surrogates, overlong forms and unfinished
// characters are not), or text.size().
size_t ValidUtf8Prefix(std::string_view text);

// Decodes bytes that come in any portions. A maximal prefix of a character that is not continued
// becomes one U+FFFD, as does every other byte that starts none (the WHATWG rule).
class Utf8Assembler {
 public:
  // Appends the complete characters to `out`; keeps at most three bytes of an unfinished one.
  void Add(std::string_view bytes, std::string& out);
  // An unfinished character becomes one U+FFFD.
  void Finish(std::string& out);

 private:
  std::string pending_;
};

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace rootstock
