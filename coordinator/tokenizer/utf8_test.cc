#include "coordinator/tokenizer/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace rootstock {
namespace {

TEST(Utf8, EveryCodePointThereAndBack) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    std::string text;
    AppendUtf8(c, text);
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    ASSERT_EQ(ValidUtf8Prefix(text), surrogate ? 0 : text.size()) << std::hex << uint32_t{c};
    if (surrogate) continue;
    ASSERT_EQ(Utf8Length(text[0]), text.size());
    size_t pos = 0;
    ASSERT_EQ(NextCodePoint(text, pos), c);
    ASSERT_EQ(pos, text.size());
  }
}

std::string Assembled(const std::string& bytes, size_t portion) {
  Utf8Assembler assembler;
  std::string text;
  for (size_t pos = 0; pos < bytes.size(); pos += portion) {
    assembler.Add(bytes.substr(pos, portion), text);
  }
  assembler.Finish(text);
  return text;
}

TEST(Utf8, MaximalPrefixesBecomeOneReplacement) {
  const std::string r(kReplacementCharacter);
  for (size_t portion : {1, 2, 3, 100}) {
    EXPECT_EQ(Assembled("a\xF0\x9F\x98\x80z", portion), "a😀z");
    EXPECT_EQ(Assembled("\xF0\x9F\x98z", portion), r + "z");           // Unfinished: one.
    EXPECT_EQ(Assembled("\xF0\x9F\x98", portion), r);                  // At the end too.
    EXPECT_EQ(Assembled("\xE0\x80\x80", portion), r + r + r);          // Overlong.
    EXPECT_EQ(Assembled("\xED\xA0\x80", portion), r + r + r);          // A surrogate.
    EXPECT_EQ(Assembled("\xF4\x90\x80\x80", portion), r + r + r + r);  // Above U+10FFFF.
    EXPECT_EQ(Assembled("\xE4\xB8\xE4\xB8\xAD", portion), r + "中");
    EXPECT_EQ(Assembled("\x80\xFF", portion), r + r);
  }
}

}  // namespace
}  // namespace rootstock
