// Each component on a few texts; tests/tokenizer compares them with the reference on many.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "coordinator/tokenizer/test_models.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace rootstock {
namespace {

using ::testing::ElementsAre;

// What `json` (of PiecesJson's kind) makes of the text, "|" behind each piece.
std::string Cut(const TestJson& json, const std::string& text, bool parse_special = false) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = json.Load();
  if (!tokenizer.ok()) return tokenizer.status().ToString();
  const auto ids =
      (*tokenizer)->Encode(text, {.add_special_tokens = true, .parse_special = parse_special});
  return ids.ok() ? (*tokenizer)->Decode(*ids, false) : ids.status().ToString();
}

std::string Normalized(const std::string& normalizer, const std::string& text) {
  TestJson json = PiecesJson();
  json.normalizer = normalizer;
  return Cut(json, text);
}

std::string Split(const std::string& pre_tokenizer, const std::string& text) {
  TestJson json = PiecesJson();
  json.pre_tokenizer = pre_tokenizer;
  return Cut(json, text);
}

std::string Type(const std::string& type) { return R"({"type": ")" + type + R"("})"; }

TEST(Normalizers, UnicodeForms) {
  EXPECT_EQ(Normalized(Type("NFC"), "e\u0301ﬁ"), "éﬁ|");
  EXPECT_EQ(Normalized(Type("NFD"), "éﬁ"), "e\u0301ﬁ|");
  EXPECT_EQ(Normalized(Type("NFKC"), "e\u0301ﬁ"), "éfi|");
  EXPECT_EQ(Normalized(Type("NFKD"), "éﬁ"), "e\u0301fi|");
  // Unicode 12.1 gave U+32FF a decomposition; the reference knows Unicode 9.
  EXPECT_EQ(Normalized(Type("NFKC"), "\u32FF㍻"), "\u32FF平成|");
}

// Marks of descending class: putting each in its place by walking back would take minutes. The
// thread sanitizer's build, many times slower at the same work of one thread, asks for the text
// alone.
TEST(Normalizers, LongRunsOfMarksTakeNoSquareTime) {
#ifdef __SANITIZE_THREAD__
  constexpr int kMarks = 10'000;
#else
  constexpr int kMarks = 200'000;
#endif
  std::string above;
  std::string below;
  for (int i = 0; i < kMarks; ++i) {
    above += "\u0301";
    below += "\u0323";
  }
  EXPECT_TRUE(Normalized(Type("NFD"), "a" + above + below) == "a" + below + above + "|");
  EXPECT_TRUE(Normalized(Type("NFC"), "a" + above + below) == "ạ" + below.substr(2) + above + "|");
}

TEST(Normalizers, Letters) {
  EXPECT_EQ(Normalized(Type("Lowercase"), "ÀBΣİ\uA7DC"), "àbσi\u0307\u019B|");
  EXPECT_EQ(Normalized(Type("StripAccents"), "e\u0301x"), "ex|");
  EXPECT_EQ(Normalized(Type("ByteLevel"), "a é"), "aĠÃ©|");
}

TEST(Normalizers, Strings) {
  EXPECT_EQ(Normalized(R"({"type": "Prepend", "prepend": "<"})", "a"), "<a|");
  EXPECT_EQ(Normalized(R"({"type": "Prepend", "prepend": "<"})", ""), "");
  EXPECT_EQ(
      Normalized(R"({"type": "Replace", "pattern": {"String": "."}, "content": "--"})", "a.b"),
      "a--b|");
  EXPECT_EQ(
      Normalized(R"({"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": "_"})", "a \nb"),
      "a_b|");
  const auto strip = [](bool left, bool right) {
    return std::string(R"({"type": "Strip", "strip_left": )") + (left ? "true" : "false") +
           R"(, "strip_right": )" + (right ? "true" : "false") + "}";
  };
  EXPECT_EQ(Normalized(strip(true, true), " \u3000a b\n"), "a b|");
  EXPECT_EQ(Normalized(strip(true, false), " a "), "a |");
  EXPECT_EQ(Normalized(strip(false, true), " a "), " a|");
  EXPECT_EQ(Normalized(strip(true, true), " \n "), "");
  EXPECT_EQ(Normalized(strip(false, true), " \n "), "");
}

std::string SplitOn(const std::string& pattern, const std::string& behavior, bool invert,
                    const std::string& text) {
  return Split(R"({"type": "Split", "pattern": )" + pattern + R"(, "behavior": ")" + behavior +
                   R"(", "invert": )" + (invert ? "true" : "false") + "}",
               text);
}

TEST(PreTokenizers, SplitBehaviors) {
  const std::string dash = R"({"String": "-"})";
  const std::string text = "-a--b-";
  EXPECT_EQ(SplitOn(dash, "Removed", false, text), "a|b|");
  EXPECT_EQ(SplitOn(dash, "Isolated", false, text), "-|a|-|-|b|-|");
  EXPECT_EQ(SplitOn(dash, "Contiguous", false, text), "-|a|--|b|-|");
  EXPECT_EQ(SplitOn(dash, "MergedWithPrevious", false, text), "-|a-|-|b-|");
  EXPECT_EQ(SplitOn(dash, "MergedWithNext", false, text), "-a|-|-b|-|");
  EXPECT_EQ(SplitOn(dash, "Removed", true, text), "-|-|-|-|");
}

TEST(PreTokenizers, SplitRegex) {
  EXPECT_EQ(SplitOn(R"({"Regex": "\\p{N}{1,3}"})", "Isolated", false, "ab12345c"), "ab|123|45|c|");
  EXPECT_EQ(SplitOn(R"({"Regex": "(?i:'s)| ?\\p{L}+"})", "Isolated", false, "it'S a'ſ"),
            "it|'S| a|'ſ|");
  EXPECT_EQ(SplitOn(R"({"Regex": "\\s+(?!\\S)|\\s+"})", "Isolated", false, "a   b"), "a|  | |b|");
  EXPECT_EQ(SplitOn(R"({"Regex": "😀+"})", "Isolated", false, "é😀😀x"), "é|😀😀|x|");
}

TEST(PreTokenizers, Classes) {
  EXPECT_EQ(Split(R"({"type": "Digits", "individual_digits": true})", "a12²"), "a|1|2|²|");
  EXPECT_EQ(Split(R"({"type": "Digits", "individual_digits": false})", "a12b"), "a|12|b|");
  EXPECT_EQ(Split(Type("Punctuation"), "a!?。b"), "a|!|?|。|b|");
  EXPECT_EQ(Split(Type("Whitespace"), "ab_1, ..c"), "ab_1|,|..|c|");
  EXPECT_EQ(Split(Type("WhitespaceSplit"), " a,\u2003b "), "a,|b|");
  EXPECT_EQ(Split(Type("BertPreTokenizer"), "a, b"), "a|,|b|");
  EXPECT_EQ(Split(R"({"type": "CharDelimiterSplit", "delimiter": "-"})", "a-b"), "a|b|");
  EXPECT_EQ(Split(R"({"type": "FixedLength", "length": 2})", "aéb"), "aé|b|");
}

TEST(PreTokenizers, ByteLevel) {
  EXPECT_EQ(Split(R"({"type": "ByteLevel", "add_prefix_space": true})", "I'm ok"), "ĠI|'m|Ġok|");
  EXPECT_EQ(Split(R"({"type": "ByteLevel", "add_prefix_space": true})", " a"), "Ġa|");
  EXPECT_EQ(Split(R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})", "a é"),
            "aĠÃ©|");
}

TEST(PreTokenizers, Metaspace) {
  const auto metaspace = [](const std::string& rest) {
    return R"({"type": "Metaspace", "replacement": "▁", )" + rest + "}";
  };
  EXPECT_EQ(Split(metaspace(R"("prepend_scheme": "always")"), "a  b"), "▁a|▁|▁b|");
  EXPECT_EQ(Split(metaspace(R"("prepend_scheme": "always")"), " a"), "▁a|");
  EXPECT_EQ(Split(metaspace(R"("prepend_scheme": "never", "split": false)"), "a b"), "a▁b|");
  TestJson json = PiecesJson();
  json.pre_tokenizer = metaspace(R"("prepend_scheme": "first")");
  EXPECT_EQ(Cut(json, "a<s>b", /*parse_special=*/true), "▁a|<s>b|");
}

TEST(PreTokenizers, Sequence) {
  EXPECT_EQ(Split(R"({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
                      {"type": "Digits", "individual_digits": true}]})",
                  "a12 b"),
            "a|1|2|b|");
}

std::string AddedToken(const std::string& flags) {
  return R"([{"id": 0, "content": "<unk>", "special": true, "normalized": false, "lstrip": false,
              "rstrip": false, "single_word": false},
             {"id": 259, "content": "TOK", "special": false, )" +
         flags + "}]";
}

TEST(AddedTokens, TakeWhiteSpaceAndRespectWords) {
  TestJson json = PiecesJson();
  json.added_tokens =
      AddedToken(R"("normalized": false, "lstrip": true, "rstrip": false, "single_word": false)");
  EXPECT_EQ(Cut(json, "a  TOK b"), "a|TOK b|");
  json.added_tokens =
      AddedToken(R"("normalized": false, "lstrip": false, "rstrip": true, "single_word": false)");
  EXPECT_EQ(Cut(json, "a TOK \u3000b"), "a |TOKb|");
  json.added_tokens =
      AddedToken(R"("normalized": false, "lstrip": false, "rstrip": false, "single_word": true)");
  EXPECT_EQ(Cut(json, "aTOK TOKb TOK,éTOK"), "aTOK TOKb |TOK,éTOK|");
}

TEST(AddedTokens, NormalizedOnesAreFoundInTheNormalizedText) {
  TestJson json = PiecesJson();
  json.normalizer = Type("Lowercase");
  json.added_tokens =
      AddedToken(R"("normalized": true, "lstrip": false, "rstrip": false, "single_word": false)");
  EXPECT_EQ(Cut(json, "A Tok b"), "a |tok b|");
  json.added_tokens =
      AddedToken(R"("normalized": false, "lstrip": false, "rstrip": false, "single_word": false)");
  EXPECT_EQ(Cut(json, "A Tok TOK"), "a tok |TOK");
}

TEST(AddedTokens, TheLongestWins) {
  TestJson json = PiecesJson();
  const std::string flags =
      R"("normalized": false, "special": true, "lstrip": false, "rstrip": false, "single_word": false)";
  json.added_tokens = R"([{"id": 259, "content": "<a", )" + flags +
                      R"(}, {"id": 260, "content": "<a><b>", )" + flags + "}]";
  EXPECT_EQ(Cut(json, "x<a><b><a><c>", /*parse_special=*/true), "x|<a><b><a><c>|");
}

TEST(PostProcessors, AddTheirTokens) {
  const std::string separators = R"(, "sep": ["</s>", 2], "cls": ["<s>", 1])";
  for (const char* type : {"BertProcessing", "RobertaProcessing"}) {
    TestJson json = PiecesJson();
    json.post_processor = std::string(R"({"type": ")") + type + "\"" + separators + "}";
    EXPECT_EQ(Cut(json, "a"), "<s>a|</s>");
  }
  TestJson json = ByteLevelJson();
  json.post_processor =
      R"({"type": "Sequence", "processors": [{"type": "ByteLevel"}, )" + json.post_processor + "]}";
  EXPECT_EQ(Cut(json, "a"), "<s>a</s>");
}

std::string Decoded(const TestJson& base, const std::string& decoder, std::vector<int32_t> ids) {
  TestJson json = base;
  json.decoder = decoder;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = json.Load();
  return tokenizer.ok() ? (*tokenizer)->Decode(ids, false) : tokenizer.status().ToString();
}

TEST(Decoders, OnTokens) {
  const TestJson json = SentencePieceJson();
  EXPECT_EQ(Decoded(json, "null", {260, 263}), "h ▁hi");
  EXPECT_EQ(Decoded(json, R"({"type": "Metaspace", "replacement": "▁"})", {263, 263}), "hi hi");
  EXPECT_EQ(Decoded(json, R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"})",
                    {263, 263}),
            " hi hi");
  EXPECT_EQ(Decoded(json, R"({"type": "BPEDecoder", "suffix": "i"})", {262, 262}), "h h");
  EXPECT_EQ(
      Decoded(json, R"({"type": "Strip", "content": "h", "start": 1, "stop": 0})", {262, 262}),
      "ii");
  EXPECT_EQ(
      Decoded(json, R"({"type": "Strip", "content": "i", "start": 0, "stop": 1})", {262, 262}),
      "hh");
  EXPECT_EQ(Decoded(json, R"({"type": "Replace", "pattern": {"String": "hi"}, "content": "x"})",
                    {262, 260, 261}),
            "xhi");
}

TEST(Decoders, OnJoinedText) {
  const TestJson json = SentencePieceJson();
  const auto fused = [](const std::string& step) {
    return R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, )" + step + "]}";
  };
  EXPECT_EQ(
      Decoded(json, fused(R"({"type": "Replace", "pattern": {"String": "hih"}, "content": "x"})"),
              {260, 261, 260, 261, 262, 260, 260}),
      "xixh");
  EXPECT_EQ(Decoded(json, fused(R"({"type": "Strip", "content": "h", "start": 3, "stop": 2})"),
                    {260, 260, 262, 261, 260, 260, 260}),
            "iih");
  EXPECT_EQ(Decoded(json, fused(R"({"type": "Strip", "content": "h", "start": 1, "stop": 0})"),
                    {261, 260}),
            "ih");
}

TEST(Bpe, UnknownCharacters) {
  const auto ids = [](const std::string& flags, const std::string& text) {
    TestJson json = SentencePieceJson();
    json.added_tokens = "[]";
    json.normalizer = "null";
    json.model =
        R"({"type": "BPE", "vocab": {"<unk>": 0, "a": 1, "<0xC3>": 2, "<0xA9>": 3}, "merges": [])" +
        flags + "}";
    return *(*json.Load())->Encode(text, {.add_special_tokens = false});
  };
  EXPECT_THAT(ids("", "xa"), ElementsAre(1));
  EXPECT_THAT(ids(R"(, "unk_token": "<unk>")", "xyaz"), ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(ids(R"(, "unk_token": "<unk>", "fuse_unk": true)", "xyaz"), ElementsAre(0, 1, 0));
  // Byte tokens do not end a run of unknown characters, and come before it: so does the reference.
  EXPECT_THAT(ids(R"(, "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true)", "xéya"),
              ElementsAre(2, 3, 0, 1));
}

TEST(Bpe, AffixesAndIgnoredMerges) {
  TestJson json = SentencePieceJson();
  json.added_tokens = "[]";
  json.normalizer = "null";
  json.model = R"({"type": "BPE", "continuing_subword_prefix": "#", "end_of_word_suffix": "/",
      "vocab": {"a": 0, "#b": 1, "#c/": 2, "ab": 3, "abc/": 4}, "merges": ["a #b", "ab #c/"]})";
  EXPECT_THAT(*(*json.Load())->Encode("abc", {}), ElementsAre(4));
  json.model =
      R"({"type": "BPE", "ignore_merges": true, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": []})";
  EXPECT_THAT(*(*json.Load())->Encode("ab", {}), ElementsAre(2));
}

TEST(Bpe, LongWordsTakeNoSquareTime) {
  const auto tokenizer = *ByteLevelJson().Load();
  std::string word;
  for (int i = 0; i < 200'000; ++i) word += "hello"[i % 5];
  const auto ids = *tokenizer->Encode(word, {.add_special_tokens = false});
  EXPECT_EQ(ids.size(), 40'000u);  // A square algorithm would take minutes here.
}

}  // namespace
}  // namespace rootstock
