#include "coordinator/tokenizer/utf8.h"

#include <utility>

namespace rootstock {
namespace {

struct Scan {
  size_t length;  // Bytes of the character, or of its maximal valid prefix, or 1 for a stray byte.
  enum { kComplete, kUnfinished, kBad } state;
};

// What stands at the beginning of `bytes` (not empty).
Scan ScanCharacter(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {1, Scan::kComplete};
  if (lead < 0xC2 || lead > 0xF4) return {1, Scan::kBad};
  const size_t length = Utf8Length(bytes[0]);
  // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {i, Scan::kUnfinished};
    if (at(i) < low || at(i) > high) return {i, Scan::kBad};
    low = 0x80;
    high = 0xBF;
  }
  return {length, Scan::kComplete};
}

}  // namespace

char32_t NextCodePoint(std::string_view text, size_t& pos) {
  const auto lead = static_cast<unsigned char>(text[pos]);
  const size_t length = Utf8Length(text[pos]);
  char32_t value = length == 1 ? lead : lead & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) value = value << 6 | (text[pos + i] & 0x3F);
  pos += length;
  return value;
}

void AppendUtf8(char32_t code_point, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
    return;
  }
  if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      put(0xE0 | code_point >> 12);
    } else {
      put(0xF0 | code_point >> 18);
      put(0x80 | (code_point >> 12 & 0x3F));
    }
    put(0x80 | (code_point >> 6 & 0x3F));
  }
  put(0x80 | (code_point & 0x3F));
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const Scan scan = ScanCharacter(text.substr(pos));
    if (scan.state != Scan::kComplete) break;
    pos += scan.length;
  }
  return pos;
}

void Utf8Assembler::Add(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = std::exchange(pending_, {}).append(bytes);
    bytes = joined;
  }
  while (!bytes.empty()) {
    const Scan scan = ScanCharacter(bytes);
    if (scan.state == Scan::kUnfinished) {
      pending_ = bytes;
      return;
    }
    out += scan.state == Scan::kComplete ? bytes.substr(0, scan.length) : kReplacementCharacter;
    bytes.remove_prefix(scan.length);
  }
}

void Utf8Assembler::Finish(std::string& out) {
  if (pending_.empty()) return;
  out += kReplacementCharacter;
  pending_.clear();
}

}  // namespace rootstock
