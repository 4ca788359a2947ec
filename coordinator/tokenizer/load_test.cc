// Bad files: each refused with the place and the reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>

#include "absl/strings/str_replace.h"
#include "coordinator/tokenizer/test_models.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace rootstock {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Refusal(const TestJson& json, absl::StatusCode code) {
  const absl::Status status = json.Load().status();
  EXPECT_EQ(status.code(), code) << status;
  return std::string(status.message());
}

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnsupported = absl::StatusCode::kUnimplemented;

TEST(Load, NoFile) {
  TestFolder folder;
  EXPECT_EQ(Tokenizer::Load(folder.path()).status().code(), absl::StatusCode::kNotFound);
}

TEST(Load, TruncatedJsonNamesTheFile) {
  const std::string whole = ByteLevelJson().ToString();
  for (size_t length : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 1}) {
    TestFolder folder;
    folder.Write("tokenizer.json", whole.substr(0, length));
    const absl::Status status = Tokenizer::Load(folder.path()).status();
    EXPECT_EQ(status.code(), kInvalid);
    EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.json"));
  }
}

TEST(Load, JsonOfAnotherShape) {
  for (const char* content : {"null", "[]", "3", "{}", R"({"model": 1})", R"({"model": {}})"}) {
    TestFolder folder;
    folder.Write("tokenizer.json", content);
    EXPECT_FALSE(Tokenizer::Load(folder.path()).ok()) << content;
  }
}

TEST(Load, BadSentencePieceModel) {
  TestFolder folder;
  folder.Write("tokenizer.model", "no model at all");
  const absl::Status status = Tokenizer::Load(folder.path()).status();
  EXPECT_EQ(status.code(), kInvalid);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.model"));
}

TEST(Load, UnknownComponentsAreNamed) {
  const std::string unknown = R"({"type": "Quux"})";
  const auto refused = [](const TestJson& json, const char* place) {
    EXPECT_THAT(Refusal(json, kUnsupported), AllOf(HasSubstr(place), HasSubstr("Quux")));
  };
  TestJson json = ByteLevelJson();
  json.model = unknown;
  refused(json, "tokenizer.json:model.type");
  json = ByteLevelJson();
  json.normalizer = R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, )" + unknown + "]}";
  refused(json, "tokenizer.json:normalizer.normalizers[1]");
  json = ByteLevelJson();
  json.pre_tokenizer = unknown;
  refused(json, "tokenizer.json:pre_tokenizer");
  json = ByteLevelJson();
  json.post_processor = unknown;
  refused(json, "tokenizer.json:post_processor");
  json = ByteLevelJson();
  json.decoder = unknown;
  refused(json, "tokenizer.json:decoder");
}

TEST(Load, TruncationAndPaddingAreRefused) {
  for (const char* field : {"truncation", "padding"}) {
    TestFolder folder;
    folder.Write("tokenizer.json",
                 absl::StrReplaceAll(ByteLevelJson().ToString(),
                                     {{std::string("\"") + field + "\": null",
                                       std::string("\"") + field + "\": {\"max_length\": 8}"}}));
    const absl::Status status = Tokenizer::Load(folder.path()).status();
    EXPECT_EQ(status.code(), kUnsupported);
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  }
}

TEST(Load, MergesMustNameTokens) {
  TestJson json = ByteLevelJson();
  json.model = R"({"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]})";
  EXPECT_THAT(Refusal(json, kInvalid),
              AllOf(HasSubstr(":model: "), HasSubstr("merges[0]"), HasSubstr("\"ab\"")));
  json.model = R"({"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "c"]]})";
  EXPECT_THAT(Refusal(json, kInvalid), HasSubstr("\"c\""));
  json.model = R"({"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]})";
  EXPECT_THAT(Refusal(json, kInvalid), HasSubstr("model.merges[0]: expected two tokens"));
}

TEST(Load, VocabularyIdsAreChecked) {
  TestJson json = ByteLevelJson();
  for (const char* id : {"-1", "16777216", "18446744073709551615", "1.5", "\"1\"", "null"}) {
    json.model = std::string(R"({"type": "BPE", "vocab": {"a": )") + id + R"(}, "merges": []})";
    EXPECT_THAT(Refusal(json, kInvalid), HasSubstr("model.vocab[\"a\"]")) << id;
  }
  json.model = R"({"type": "BPE", "vocab": {"a": 7, "b": 7}, "merges": []})";
  EXPECT_THAT(Refusal(json, kInvalid), HasSubstr("another token has id 7"));
  json.model = R"({"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "<unk>"})";
  EXPECT_THAT(Refusal(json, kInvalid), HasSubstr("<unk>"));
  json.model = R"({"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1})";
  EXPECT_THAT(Refusal(json, kUnsupported), HasSubstr("model.dropout"));
}

TEST(Load, AddedTokensAreChecked) {
  TestJson json = ByteLevelJson();
  json.added_tokens = absl::StrReplaceAll(json.added_tokens, {{"262", "300"}});
  EXPECT_THAT(Refusal(json, kInvalid),
              AllOf(HasSubstr("added_tokens[1]"), HasSubstr("</s>"), HasSubstr("implies 262")));
  json = ByteLevelJson();
  json.added_tokens = R"([{"id": 261}])";
  EXPECT_THAT(Refusal(json, kInvalid), HasSubstr("added_tokens[0].content"));
}

TEST(Load, BadPatterns) {
  TestJson json = ByteLevelJson();
  const auto with = [&](const std::string& pattern) {
    json.pre_tokenizer = R"({"type": "Split", "pattern": )" + pattern +
                         R"(, "behavior": "Isolated", "invert": false})";
    return json;
  };
  EXPECT_THAT(Refusal(with(R"({"Regex": "(a"})"), kInvalid), HasSubstr("pre_tokenizer.pattern"));
  EXPECT_THAT(Refusal(with(R"({"Regex": "\\k<a>"})"), kUnsupported), HasSubstr("escape \\k"));
  EXPECT_THAT(Refusal(with(R"({"String": ""})"), kInvalid), HasSubstr("empty"));
  EXPECT_THAT(Refusal(with(R"({})"), kInvalid), HasSubstr("pattern.String"));
}

TEST(Load, TemplatesMustHoldTheTextOnce) {
  TestJson json = ByteLevelJson();
  json.post_processor = R"({"type": "TemplateProcessing", "single": [], "special_tokens": {}})";
  EXPECT_THAT(Refusal(json, kUnsupported), HasSubstr("post_processor.single"));
  json.post_processor = R"({"type": "TemplateProcessing", "special_tokens": {}, "single": [
      {"SpecialToken": {"id": "<x>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]})";
  EXPECT_THAT(Refusal(json, kInvalid), HasSubstr("special_tokens.<x>"));
}

// Found by fuzzing: such an id would reach the model, which has no row for it.
TEST(Load, AddedIdsMustHaveTokens) {
  TestJson json = ByteLevelJson();
  for (const char* type : {"BertProcessing", "RobertaProcessing"}) {
    json.post_processor =
        std::string(R"({"type": ")") + type + R"(", "cls": ["<s>", 261], "sep": ["</s>", 263]})";
    EXPECT_THAT(Refusal(json, kInvalid), HasSubstr("post_processor")) << type;
    EXPECT_THAT(Refusal(json, kInvalid), HasSubstr("263, which has no token")) << type;
  }
}

// A row for every id up to the largest took a gigabyte, for a file of a few bytes.
TEST(Load, IdsWithoutTokensTakeNoMemory) {
  TestJson json = ByteLevelJson();
  json.added_tokens = "[]";
  json.post_processor = "null";
  json.model = R"({"type": "BPE", "vocab": {"a": 0, "b": 16777215}, "merges": []})";
  const auto peak_kib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const long before = peak_kib();
  const auto tokenizer = json.Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_LE(peak_kib() - before, 64 << 10);
  EXPECT_EQ((*tokenizer)->VocabSize(), 16777216);
  EXPECT_EQ((*tokenizer)->IdToToken(16777215), "b");
  EXPECT_EQ((*tokenizer)->IdToToken(16777214), std::nullopt);
}

// Each level took a stack frame.
TEST(Load, DeepSequencesAreRefused) {
  const auto nested = [](const std::string& list, int levels) {
    std::string text;
    for (int i = 0; i < levels; ++i) text += R"({"type": "Sequence", ")" + list + R"(": [)";
    for (int i = 0; i < levels; ++i) text += "]}";
    return text;
  };
  TestJson json = ByteLevelJson();
  json.normalizer = nested("normalizers", 8);
  EXPECT_TRUE(json.Load().ok());
  const auto refused = [&](std::string TestJson::* part, const std::string& list) {
    TestJson deep = ByteLevelJson();
    deep.*part = nested(list, 30'000);
    EXPECT_THAT(Refusal(deep, kInvalid), HasSubstr("nested deeper than 32"));
  };
  refused(&TestJson::normalizer, "normalizers");
  refused(&TestJson::pre_tokenizer, "pretokenizers");
  refused(&TestJson::post_processor, "processors");
  refused(&TestJson::decoder, "decoders");
}

TEST(Load, TokensCannotFollowJoinedText) {
  TestJson json = SentencePieceJson();
  json.decoder =
      R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]})";
  EXPECT_THAT(Refusal(json, kUnsupported), HasSubstr("decoder.decoders[1]"));
}

}  // namespace
}  // namespace rootstock
