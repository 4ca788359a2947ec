#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/tokenizer/json_tokenizer.h"
#include "coordinator/tokenizer/utf8.h"
#include "tests/fuzz/fuzz_target.h"

namespace rootstock {
namespace {

constexpr char kText[] = "<s>ab he said: caf\xc3\xa9 12345, \xe4\xbd\xa0 \xf0\x9f\x98\x80\n\n  ab";

void CheckDecoded(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (const bool skip_special : {false, true}) {
    const std::string text = tokenizer.Decode(ids, skip_special);
    Require(ValidUtf8Prefix(text) == text.size(), "decoded text is not UTF-8");
  }
}

absl::StatusOr<std::string> RunTokenizer(const std::string& input) {
  ASSIGN_OR_RETURN(const auto tokenizer, ParseJsonTokenizer(input, "tokenizer.json"));
  const int32_t size = tokenizer->VocabSize();
  CheckDecoded(*tokenizer, {-1, 0, 1, 2, 3, size - 1, size, INT32_MAX});
  std::string outcome = absl::StrCat("size ", size);
  for (const bool special : {false, true}) {
    ASSIGN_OR_RETURN(const auto ids, tokenizer->Encode(kText, {.add_special_tokens = special,
                                                               .parse_special = special}));
    for (const int32_t id : ids) Require(id >= 0 && id < size, "an id is not of the vocabulary");
    CheckDecoded(*tokenizer, ids);
    absl::StrAppend(&outcome, " ids ", ids.size());
  }
  return outcome;
}

// A tokenizer.json around a vocabulary of few tokens.
std::string Json(const std::string& members, const std::string& model = "") {
  return absl::StrCat(
      R"({"version":"1.0","added_tokens":[{"id":5,"content":"<s>","special":true,)"
      R"("normalized":false,"lstrip":false,"rstrip":false,"single_word":false}],)",
      members, R"(,"model":{"type":"BPE",)", model,
      R"("unk_token":"<unk>","vocab":{"<unk>":0,"a":1,"b":2,"ab":3,"▁":4},"merges":["a b"]}})");
}

std::vector<std::string> Seeds() {
  return {
      Json(R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},)"
           R"("decoder":{"type":"ByteLevel"})"),
      Json(R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},)"
           R"({"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},)"
           R"("content":"▁"}]},"decoder":{"type":"Sequence","decoders":[{"type":"Replace",)"
           R"("pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},)"
           R"({"type":"Strip","content":" ","start":1,"stop":0}]})",
           R"("fuse_unk":true,"byte_fallback":true,)"),
      Json(R"x("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":)x"
           R"x({"Regex":"\\p{N}{1,3}|[^\\s\\p{L}]+|\\s+(?!\\S)"},"behavior":"Isolated",)x"
           R"("invert":false},{"type":"Digits","individual_digits":true}]})"),
      Json(R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":)"
           R"({"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],)"
           R"("special_tokens":{"<s>":{"id":"<s>","ids":[5],"tokens":["<s>"]}}},)"
           R"("decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"},)"
           R"("pre_tokenizer":{"type":"Metaspace","replacement":"▁","split":true})"),
      Json(R"("decoder":{"type":"BPEDecoder","suffix":"/"},"normalizer":{"type":"Strip",)"
           R"("strip_left":true,"strip_right":true},"pre_tokenizer":{"type":"FixedLength",)"
           R"("length":2})",
           R"("continuing_subword_prefix":"#","end_of_word_suffix":"/","ignore_merges":true,)"),
  };
}

std::vector<std::string> Words() {
  std::vector<std::string> words = {
      "\"",        "[",   "]",      "{",        "}", ",",       ":",    "\\\\p{L}", "(?i)",
      "(?!\\\\S)", "a*+", "(a+)+$", "[^\\\\r]", "|", "\\ud83d", "\xff", "\\u0000",  "null"};
  for (const char* type : {"NFC",
                           "NFD",
                           "NFKC",
                           "NFKD",
                           "Lowercase",
                           "StripAccents",
                           "Prepend",
                           "Replace",
                           "Strip",
                           "Nmt",
                           "BertNormalizer",
                           "Precompiled",
                           "ByteLevel",
                           "Metaspace",
                           "Split",
                           "Punctuation",
                           "WhitespaceSplit",
                           "Whitespace",
                           "Digits",
                           "CharDelimiterSplit",
                           "FixedLength",
                           "Sequence",
                           "TemplateProcessing",
                           "RobertaProcessing",
                           "BertProcessing",
                           "ByteFallback",
                           "Fuse",
                           "BPEDecoder",
                           "WordPiece",
                           "CTC",
                           "Unigram"}) {
    words.push_back(absl::StrCat(R"({"type":")", type, "\"}"));
    words.push_back(absl::StrCat("\"", type, "\""));
  }
  for (const char* behavior :
       {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}) {
    words.push_back(absl::StrCat("\"", behavior, "\""));
  }
  return words;
}

}  // namespace

FuzzTarget TokenizerTarget() {
  return {.name = "tokenizer", .seeds = Seeds(), .words = Words(), .run = RunTokenizer};
}

}  // namespace rootstock
