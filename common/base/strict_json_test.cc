#include "common/base/strict_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace rootstock {
namespace {

Reason ReasonOf(const std::string& text, StrictJsonLimits limits = {}) {
  const auto parsed = ParseStrictJson(text, "f.json", limits);
  if (parsed.ok()) return Reason::kInternal;
  EXPECT_NE(std::string(parsed.status().message()).find("f.json"), std::string::npos);
  return GetErrorDetail(parsed.status())->reason;
}

TEST(StrictJson, ParsesValues) {
  const auto parsed = ParseStrictJson(R"({"a": [1, 2.5, null], "b": {"a": "x"}})", "f.json", {});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ((*parsed)["b"]["a"], "x");
}

TEST(StrictJson, RefusesDuplicatesAtAnyDepth) {
  EXPECT_EQ(ReasonOf(R"({"a": 1, "a": 1})"), Reason::kDuplicate);
  EXPECT_EQ(ReasonOf(R"({"x": [{"a": 1, "a": 2}]})"), Reason::kDuplicate);
  EXPECT_EQ(ReasonOf(R"({"a": {"a": {}}})"), Reason::kInternal);  // nested, not twice
  EXPECT_EQ(ReasonOf(R"({"": 1, "": 1})"), Reason::kDuplicate);
}

TEST(StrictJson, OrderedKeepsTheFilesOrder) {
  const auto parsed = ParseStrictOrderedJson(R"({"b": 1, "a": 2})", "f.json", {});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->dump(), R"({"b":1,"a":2})");
  EXPECT_FALSE(ParseStrictOrderedJson(R"({"b": 1, "b": 2})", "f.json", {}).ok());
}

TEST(StrictJson, RefusesMalformed) {
  for (const char* text : {"", "{", "{\"a\":}", "{} x", "[1,]", "{\"a\":NaN}", "\xff", "nul"}) {
    EXPECT_EQ(ReasonOf(text), Reason::kConfigInvalid) << text;
  }
}

TEST(StrictJson, ANumberTooLargeIsToldByItsKeys) {
  for (const auto& [text, told] :
       {std::pair<std::string, std::string>{R"({"x": {"a": [1]}, "b": 1e999})", "b=1e999"},
        {R"({"a": {"y": 1, "x": -2e400}})", "a[x]=-2e400"},
        {R"({"a": [{"b": 0}, {"c": 1e999}]})", "a[c]=1e999"},
        {"[1e999]", "f.json=1e999"}}) {
    const absl::Status status = ParseStrictJson(text, "f.json", {}).status();
    EXPECT_EQ(status.message(), told + ": is too large a number");
    EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kConfigInvalid);
  }
}

TEST(StrictJson, RefusesDeepAndLong) {
  EXPECT_EQ(ReasonOf(std::string(100000, '[')), Reason::kConfigInvalid);
  EXPECT_EQ(ReasonOf("[[[]]]", {.max_depth = 3}), Reason::kInternal);
  EXPECT_EQ(ReasonOf("[[[[]]]]", {.max_depth = 3}), Reason::kConfigInvalid);
  EXPECT_EQ(ReasonOf(R"({"a": 1, "b": 2})", {.max_keys = 1}), Reason::kConfigInvalid);
  EXPECT_EQ(ReasonOf("[1, 2, 3]", {.max_bytes = 8}), Reason::kConfigInvalid);
}

}  // namespace
}  // namespace rootstock
