#include "coordinator/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace rootstock {
namespace {

using ::testing::HasSubstr;

// The text with its matches in brackets.
std::string Marked(std::string_view pattern, const std::string& text) {
  const auto regex = Regex::Compile(pattern);
  if (!regex.ok()) return regex.status().ToString();
  std::vector<Span> spans;
  const absl::Status status = (*(*regex)->NewMatcher())->Cut(text, spans);
  if (!status.ok()) return status.ToString();
  std::string marked;
  for (const Span& span : spans) {
    const std::string part = text.substr(span.begin, span.end - span.begin);
    marked += span.match ? "[" + part + "]" : part;
  }
  return marked;
}

TEST(Regex, OnigurumaMeanings) {
  EXPECT_EQ(Marked(R"(\h+)", "xFF g"), "x[FF] g");    // Hexadecimal digits, not spaces.
  EXPECT_EQ(Marked(R"(\v)", "\v\n"), "[\v]\n");       // One character, not all line ends.
  EXPECT_EQ(Marked(R"(^a$)", "a\na\r"), "[a]\na\r");  // At every line; lines end with \n.
  EXPECT_EQ(Marked(R"(a.)", "a\na\r"), "a\n[a\r]");   // Dot is all but \n.
  EXPECT_EQ(Marked(R"((?m:a.))", "a\nb"), "[a\n]b");  // Ruby's m.
  EXPECT_EQ(Marked(R"(a{,2}b)", "aaab"), "a[aab]");   // No lower bound.
  EXPECT_EQ(Marked(R"(a{b}])", "a{b}]"), "[a{b}]]");  // Literal braces.
  EXPECT_EQ(Marked(R"(\p{^L}+)", "a1b"), "a[1]b");
  EXPECT_EQ(Marked(R"([]a]+)", "x]a"), "x[]a]");
  EXPECT_EQ(Marked(R"([a-]+)", "a-b"), "[a-]b");
  EXPECT_EQ(Marked(R"([\p{L}&&[^\p{Han}]]+)", "ab中"), "[ab]中");
  EXPECT_EQ(Marked(R"([^\p{L}&&[^b]]+)", "ab1"), "a[b1]");
  EXPECT_EQ(Marked(R"([+--]+)", "a+,-."), "a[+,-].");
  EXPECT_EQ(Marked(R"(\bb)", "b ab"), "[b] ab");
  EXPECT_EQ(Marked(R"(\w+)", "a²_-é"), "[a²_]-[é]");
}

TEST(Regex, NewCharactersHaveTheirProperties) {
  EXPECT_EQ(Marked(R"(\p{Lu})", "\u1C89"), "[\u1C89]");
  EXPECT_EQ(Marked(R"([^\p{L}]+)", "\u1C89 "), "\u1C89[ ]");
  EXPECT_EQ(Marked(R"(\p{Cn})", "\u1C89\u0378"), "\u1C89[\u0378]");
  EXPECT_EQ(Marked(R"(\p{Han})", "\U0002EBF0"), "[\U0002EBF0]");
}

TEST(Regex, EmptyMatches) {
  EXPECT_EQ(Marked("a*", "baa"), "[]b[aa]");
  EXPECT_EQ(Marked("(?=b)", "abab"), "a[]ba[]b");
}

TEST(Regex, RefusesWhatItCannotTranslate) {
  for (const char* pattern : {R"(\1)", R"(\k<a>)", R"((?<a>b))", R"(a{2}+)", R"(a{2}?)",
                              R"([[:alpha:]])", R"(\X)", R"(a\)", R"(\p{Script_Extensions=Greek})",
                              R"(\p{L)", R"(\xFF)", R"(a(?i)b)", R"([a-\d])", R"([a)"}) {
    const absl::Status status = TranslatePattern(pattern).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << pattern;
  }
  const std::string deep(100, '[');
  EXPECT_THAT(std::string(TranslatePattern(deep).status().message()), HasSubstr("nested"));
  EXPECT_EQ(Regex::Compile("(a").status().code(), absl::StatusCode::kInvalidArgument);
}

// Each repetition needs memory of its own, until there is too much of it.
TEST(Regex, MatchingThatNeedsTooMuchMemoryFails) {
  const auto regex = *Regex::Compile("(?:a|b(?=x))*c");
  std::vector<Span> spans;
  const absl::Status status = (*regex->NewMatcher())->Cut(std::string(30'000'000, 'a'), spans);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace rootstock
