#include "coordinator/ctl/request_flags.h"

#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/flags/flag_value.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Error(const std::string& line) {
  return std::string(ParseBatchLine(line, {}).status().message());
}

TEST(RequestFlags, ABatchLineSetsEverything) {
  v1::GenerateRequest defaults;
  defaults.set_max_tokens(5);
  const auto line = ParseBatchLine(
      R"({"model": "pirate", "prompt": "hi", "temperature": 0, "top_p": 0.5, "top-k": 3,
          "seed": 18446744073709551615, "stop": ["a", "b"], "stop_token_id": [1, 2], "n": 2,
          "ignore_eos": true, "logit_bias": ["7=-1.5"], "delay_ms": 40, "label": "x"})",
      defaults);
  ASSERT_TRUE(line.ok()) << line.status();
  const v1::GenerateRequest& request = line->request;
  EXPECT_EQ(request.model(), "pirate");
  EXPECT_EQ(request.text(), "hi");
  EXPECT_EQ(request.max_tokens(), 5);
  EXPECT_TRUE(request.sampling().has_temperature());
  EXPECT_EQ(request.sampling().top_p(), 0.5f);
  EXPECT_EQ(request.sampling().top_k(), 3);
  EXPECT_EQ(request.sampling().seed(), 18446744073709551615u);
  EXPECT_THAT(request.stop(), ElementsAre("a", "b"));
  EXPECT_THAT(request.stop_token_ids(), ElementsAre(1, 2));
  EXPECT_TRUE(request.ignore_eos());
  EXPECT_EQ(request.sampling().logit_bias().at(7), -1.5f);
  EXPECT_EQ(line->delay_ms, 40);
  EXPECT_EQ(line->label, "x");
}

// The names of the message's fields that are set, those of `sampling` one by one.
std::set<std::string> FieldsSet(const google::protobuf::Message& message) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  std::set<std::string> names;
  for (const auto* field : fields) names.insert(std::string(field->name()));
  return names;
}

TEST(RequestFlags, EveryFieldOfARequestCanBeSet) {
  const std::string file = ::testing::TempDir() + "/every_field.txt";
  std::ofstream(file) << "text";
  std::set<std::string> request_fields, sampling_fields;
  v1::GenerateRequest no_defaults;
  for (const FlagSpec& flag : RequestFlags(no_defaults)) {
    const std::string value = IsBool(flag)                 ? "true"
                              : flag.name == "logit-bias"  ? "\"7=1\""
                              : flag.name == "prompt-file" ? "\"" + file + "\""
                                                           : "\"1\"";
    const auto line = ParseBatchLine("{\"" + flag.name + "\": " + value + "}", {});
    ASSERT_TRUE(line.ok()) << line.status();
    request_fields.merge(FieldsSet(line->request));
    sampling_fields.merge(FieldsSet(line->request.sampling()));
  }
  request_fields.merge(FieldsSet(ParseBatchLine(R"({"tenant": "t"})", {})->request));
  for (int i = 0; i < v1::GenerateRequest::descriptor()->field_count(); ++i) {
    const std::string name(v1::GenerateRequest::descriptor()->field(i)->name());
    EXPECT_TRUE(request_fields.contains(name)) << name;
  }
  for (int i = 0; i < v1::SamplingParams::descriptor()->field_count(); ++i) {
    const std::string name(v1::SamplingParams::descriptor()->field(i)->name());
    EXPECT_TRUE(sampling_fields.contains(name)) << name;
  }
}

TEST(RequestFlags, APromptOfTheDefaultsIsForLinesWithoutOne) {
  v1::GenerateRequest defaults;
  defaults.set_text("hi");
  const auto with = ParseBatchLine(R"({"model": "m", "token_ids": [3, 4]})", defaults);
  EXPECT_EQ(with.status().message(),
            "token-ids=3: the prompt is given already, on the command line: one of TEXT, --prompt, "
            "--prompt-file, --token-ids");
  const auto without = ParseBatchLine(R"({"model": "m"})", defaults);
  ASSERT_TRUE(without.ok());
  EXPECT_EQ(without->request.text(), "hi");
}

TEST(RequestFlags, TokenIdsAreAListOrJoined) {
  v1::GenerateRequest defaults;
  const auto line = ParseBatchLine(R"({"model": "m", "token_ids": [3, 4]})", defaults);
  ASSERT_TRUE(line.ok());
  EXPECT_THAT(line->request.token_ids().ids(), ElementsAre(3, 4));
  EXPECT_EQ(line->label, "m");
  const auto joined = ParseBatchLine(R"({"model": "m", "token_ids": "3, 4,5 6 "})", defaults);
  ASSERT_TRUE(joined.ok());
  EXPECT_THAT(joined->request.token_ids().ids(), ElementsAre(3, 4, 5, 6));
}

TEST(RequestFlags, ALineHasOnePrompt) {
  EXPECT_THAT(Error(R"({"prompt": "hi", "token_ids": [3, 4]})"),
              HasSubstr("token-ids=3: the prompt is given already, as prompt=hi"));
}

TEST(RequestFlags, ValuesAreTheServersToJudge) {
  const auto line = ParseBatchLine(R"({"max_tokens": -3, "temperature": -1})", {});
  ASSERT_TRUE(line.ok());
  EXPECT_EQ(line->request.max_tokens(), -3);
}

TEST(RequestFlags, ErrorsNameKeyAndValue) {
  EXPECT_THAT(Error(R"({"max_tokens": "many"})"), HasSubstr("max-tokens=many"));
  EXPECT_THAT(Error(R"({"max_tokens": [1, 2]})"), HasSubstr("max-tokens=[1,2]"));
  EXPECT_THAT(Error(R"({"max_tokens": null})"), HasSubstr("max-tokens=null"));
  for (const char* number : {"1.5", "99999999999"}) {
    EXPECT_THAT(Error(absl::StrCat(R"({"max_tokens": )", number, "}")),
                HasSubstr(absl::StrCat("max-tokens=", number,
                                       ": must be a whole number from -2147483648 to 2147483647")));
  }
  EXPECT_THAT(Error(R"({"ignore_eos": 3})"), HasSubstr("ignore-eos=3"));
  EXPECT_THAT(Error(R"({"token_ids": [1, "x"]})"), HasSubstr("token-ids=x"));
  for (const std::string ids : {"1,,2", ",1", "1,", "1, ,2", " "}) {
    EXPECT_THAT(Error("{\"token_ids\": \"" + ids + "\"}"),
                HasSubstr("token-ids=" + ids + ": has an empty item"));
  }
  EXPECT_THAT(Error(R"({"token_ids": ""})"), HasSubstr("token-ids: has an empty item"));
  EXPECT_THAT(Error(R"({"stop_token_id": "1,,2"})"), HasSubstr("stop-token-id=1,,2: has an empty"));
  EXPECT_THAT(Error(R"({"logit_bias": ["7"]})"), HasSubstr("logit-bias=7"));
  EXPECT_THAT(Error(R"({"temprature": 1})"), HasSubstr("temprature=1: unknown key"));
  EXPECT_THAT(Error("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(Error(R"({"top_p": 1,)"), HasSubstr("line: is not valid JSON (at byte "));
  EXPECT_THAT(Error(R"({"top_p": 1, "top_p": 0.5})"), HasSubstr("line=top_p: key is given twice"));
  EXPECT_THAT(Error(R"({"top_p": 1, "top-p": 1})"), HasSubstr("line=top_p: key is given twice"));
  EXPECT_THAT(Error(R"({"temperature": 1e999})"), HasSubstr("temperature=1e999: is too large"));
  EXPECT_THAT(Error(R"({"prompt_file": "/no/such"})"), HasSubstr("prompt-file=/no/such"));
}

}  // namespace
}  // namespace rootstock
