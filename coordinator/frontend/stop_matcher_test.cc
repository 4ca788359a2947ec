#include "coordinator/frontend/stop_matcher.h"

#include <random>

#include "gtest/gtest.h"

namespace rootstock {
namespace {

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStop) {
  StopMatcher matcher({"END", "ENTER"}, false);
  EXPECT_EQ(matcher.Add("The ").text, "The ");
  EXPECT_EQ(matcher.Add("EN").text, "");
  EXPECT_EQ(matcher.Add("E").text, "EN");  // this E may start one
  EXPECT_EQ(matcher.Add("x").text, "Ex");
  EXPECT_EQ(matcher.Add("ENTE").text, "");
  const auto shown = matcher.Add("R more");
  EXPECT_EQ(shown.text, "");
  EXPECT_EQ(shown.match, "ENTER");
}

TEST(StopMatcher, TextBeforeTheStopIsShownOnce) {
  StopMatcher matcher({"\n\n"}, false);
  EXPECT_EQ(matcher.Add("a\n").text, "a");
  const auto shown = matcher.Add("\nb");
  EXPECT_EQ(shown.text, "");
  EXPECT_EQ(shown.match, "\n\n");
  StopMatcher other({"\n\n"}, false);
  EXPECT_EQ(other.Add("a\n").text, "a");
  EXPECT_EQ(other.Add("b").text, "\nb");
}

TEST(StopMatcher, IncludesTheStopWhenAsked) {
  StopMatcher matcher({"</s>"}, true);
  EXPECT_EQ(matcher.Add("x<").text, "x");
  EXPECT_EQ(matcher.Add("/s>y").text, "</s>");
}

TEST(StopMatcher, EndOfTextFlushes) {
  StopMatcher matcher({"stop"}, false);
  EXPECT_EQ(matcher.Add("a st").text, "a ");
  EXPECT_EQ(matcher.Flush(), "st");
}

TEST(StopMatcher, UnmatchedTextIsNoPartOfAStop) {
  StopMatcher matcher({"ab"}, false);
  EXPECT_EQ(matcher.AddUnmatched("xab a").text, "xab a");
  EXPECT_FALSE(matcher.Add("b").match.has_value());
}

// However the text is cut, the same is shown and the same stop is found.
TEST(StopMatcher, CutsDoNotMatter) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 24; ++i) text += static_cast<char>('a' + random() % 2);
    const std::vector<std::string> stops = {"abba", "bbb", "aabaa", "abbab"};
    std::string first_text, first_match;
    for (int cut = 0; cut < 4; ++cut) {
      StopMatcher matcher(stops, false);
      std::string shown, match;
      for (size_t at = 0; at < text.size() && match.empty();) {
        const size_t size = cut == 0 ? 1 : 1 + random() % 6;
        const auto out = matcher.Add(text.substr(at, size));
        at += size;
        shown += out.text;
        match = out.match.value_or("");
      }
      if (match.empty()) shown += matcher.Flush();
      if (cut == 0) {
        first_text = shown;
        first_match = match;
      }
      ASSERT_EQ(shown, first_text) << text;
      ASSERT_EQ(match, first_match) << text;
    }
  }
}

}  // namespace
}  // namespace rootstock
