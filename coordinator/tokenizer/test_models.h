// Small tokenizer.json files for the tests.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace rootstock {

// A folder of its own, removed with its content at the end.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void Write(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path path_;
};

// The members of a tokenizer.json, as JSON.
struct TestJson {
  std::string added_tokens = "[]";
  std::string normalizer = "null";
  std::string pre_tokenizer = "null";
  std::string post_processor = "null";
  std::string decoder = "null";
  std::string model;

  std::string ToString() const;
  absl::StatusOr<std::unique_ptr<Tokenizer>> Load() const;
};

// A byte-level vocabulary: 256 byte tokens (id = byte), then "he" 256, "ll" 257, "hell" 258,
// "hello" 259, "Ġhello" 260, and the special tokens "<s>" 261 and "</s>" 262.
TestJson ByteLevelJson();

// A sentencepiece-style vocabulary: "<unk>" 0, "<s>" 1, "</s>" 2, bytes <0x00>... 3 to 258, then
// "▁" 259, "h" 260, "i" 261, "hi" 262, "▁hi" 263, "é" 264.
TestJson SentencePieceJson();

// A vocabulary of "<unk>" 0, "<s>" 1, "</s>" 2 and the bytes alone, whose pieces end with the bytes
// of
// "|": decoding shows where texts are cut.
TestJson PiecesJson();

}  // namespace rootstock
