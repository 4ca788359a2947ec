#include "coordinator/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "coordinator/tokenizer/utf8.h"

namespace rootstock {
namespace {

constexpr bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr int kAlphabetEnd = 0x100 + 256 - ('~' - '!' + 1) - 0xC - 0x52;  // One past the last.

constexpr std::array<char16_t, 256> kCharacterOf = [] {
  std::array<char16_t, 256> table{};
  char16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    table[byte] = StandsForItself(byte) ? static_cast<char16_t>(byte) : next++;
  }
  return table;
}();

constexpr std::array<int16_t, kAlphabetEnd> kByteOf = [] {
  std::array<int16_t, kAlphabetEnd> table{};
  table.fill(-1);
  for (int byte = 0; byte < 256; ++byte) table[kCharacterOf[byte]] = static_cast<int16_t>(byte);
  return table;
}();

}  // namespace

std::string ToByteAlphabet(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (unsigned char byte : bytes) AppendUtf8(kCharacterOf[byte], text);
  return text;
}

std::string FromByteAlphabet(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t pos = 0; pos < token.size();) {
    const char32_t c = NextCodePoint(token, pos);
    if (c >= kByteOf.size() || kByteOf[c] < 0) return std::string(token);
    bytes.push_back(static_cast<char>(kByteOf[c]));
  }
  return bytes;
}

}  // namespace rootstock
