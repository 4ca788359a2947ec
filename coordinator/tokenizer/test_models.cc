#include "coordinator/tokenizer/test_models.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "coordinator/tokenizer/byte_alphabet.h"

namespace rootstock {
namespace {

constexpr char kSpecial[] =
    R"("special": true, "normalized": false, "lstrip": false, "rstrip": false, "single_word": false)";

std::string Quoted(const std::string& text) {
  return text == "\"" || text == "\\" ? absl::StrCat("\"\\", text, "\"")
                                      : absl::StrCat("\"", text, "\"");
}

// "<0x00>": 3, ... with a comma at the end.
std::string ByteTokens() {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    char token[24];
    std::snprintf(token, sizeof(token), "\"<0x%02X>\": %d, ", byte, byte + 3);
    bytes += token;
  }
  return bytes;
}

}  // namespace

TestFolder::TestFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "rootstock-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) std::abort();
  path_ = name;
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TestFolder::Write(const std::string& name, const std::string& content) const {
  std::ofstream(path_ / name, std::ios::binary) << content;
}

std::string TestJson::ToString() const {
  return absl::StrCat(R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": )",
                      added_tokens, R"(, "normalizer": )", normalizer, R"(, "pre_tokenizer": )",
                      pre_tokenizer, R"(, "post_processor": )", post_processor, R"(, "decoder": )",
                      decoder, R"(, "model": )", model, "}");
}

absl::StatusOr<std::unique_ptr<Tokenizer>> TestJson::Load() const {
  TestFolder folder;
  folder.Write("tokenizer.json", ToString());
  return Tokenizer::Load(folder.path());
}

TestJson ByteLevelJson() {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string token = ToByteAlphabet(std::string(1, static_cast<char>(byte)));
    absl::StrAppend(&vocab, Quoted(token), ": ", byte, ", ");
  }
  TestJson json;
  json.model = absl::StrCat(R"({"type": "BPE", "vocab": {)", vocab,
                            R"("he": 256, "ll": 257, "hell": 258, "hello": 259, "Ġhello": 260},
          "merges": ["h e", "l l", "he ll", "hell o", "Ġ hello"]})");
  json.added_tokens = absl::StrCat(R"([{"id": 261, "content": "<s>", )", kSpecial,
                                   R"(}, {"id": 262, "content": "</s>", )", kSpecial, "}]");
  json.pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": false})";
  json.decoder = R"({"type": "ByteLevel"})";
  json.post_processor = R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "</s>", "type_id": 0}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [261], "tokens": ["<s>"]},
                                     "</s>": {"id": "</s>", "ids": [262], "tokens": ["</s>"]}}})";
  return json;
}

TestJson SentencePieceJson() {
  const std::string bytes = ByteTokens();

  TestJson json;
  json.model = absl::StrCat(
      R"({"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
          "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, )",
      bytes, R"("▁": 259, "h": 260, "i": 261, "hi": 262, "▁hi": 263, "é": 264},
          "merges": [["h", "i"], ["▁", "hi"]]})");
  json.added_tokens = absl::StrCat(R"([{"id": 0, "content": "<unk>", )", kSpecial,
                                   R"(}, {"id": 1, "content": "<s>", )", kSpecial,
                                   R"(}, {"id": 2, "content": "</s>", )", kSpecial, "}]");
  json.normalizer = R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})";
  json.decoder = R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})";
  return json;
}

TestJson PiecesJson() {
  TestJson json = SentencePieceJson();
  json.model = absl::StrCat(
      R"({"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "end_of_word_suffix": "|",
          "merges": [], "vocab": {)",
      ByteTokens(), R"("<unk>": 0, "<s>": 1, "</s>": 2}})");
  json.normalizer = "null";
  json.decoder =
      R"({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]})";
  return json;
}

}  // namespace rootstock
