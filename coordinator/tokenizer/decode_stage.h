// Tokens back to text, one at a time: tokenizer.json's "decoder" as a chain of stages.
//
// The reference decodes a whole sequence at once; a stage gives the same text in pieces and holds
// back what later tokens may still change. After a stage that joins all tokens (ByteLevel, Fuse)
// pieces are parts of one text, before it they are tokens; stages that differ by this are told.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/tokenizer/utf8.h"

namespace rootstock {

// A stage with its state: used by one thread at a time. One that has seen nothing yet serves as the
// pattern that sequences clone, from any thread.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual std::unique_ptr<DecodeStage> Clone() const = 0;
  // Replaces `pieces` by what is now known of them.
  virtual void Push(std::vector<std::string>& pieces) = 0;
  // Appends what was held back to `pieces`.
  virtual void Finish(std::vector<std::string>& pieces) {}
};

// Joins tokens with spaces: what is done without a decoder.
class JoinStage : public DecodeStage {
 public:
  std::unique_ptr<DecodeStage> Clone() const override;
  void Push(std::vector<std::string>& pieces) override;

 private:
  bool first_ = true;
};

// Reads tokens in the byte alphabet and joins them; bad bytes become U+FFFD.
class ByteLevelStage : public DecodeStage {
 public:
  std::unique_ptr<DecodeStage> Clone() const override;
  void Push(std::vector<std::string>& pieces) override;
  void Finish(std::vector<std::string>& pieces) override;

 private:
  Utf8Assembler assembler_;
};

// Joins runs of <0xHH> tokens: the run's text when it is valid UTF-8, else one U+FFFD a byte.
class ByteFallbackStage : public DecodeStage {
 public:
  std::unique_ptr<DecodeStage> Clone() const override;
  void Push(std::vector<std::string>& pieces) override;
  void Finish(std::vector<std::string>& pieces) override;

 private:
  std::string run_;
};

// Marks become spaces; in the first token they vanish, unless `keep_first`.
class MetaspaceStage : public DecodeStage {
 public:
  MetaspaceStage(std::string mark, bool keep_first);
  std::unique_ptr<DecodeStage> Clone() const override;
  void Push(std::vector<std::string>& pieces) override;

 private:
  std::string mark_;
  bool drop_;  // Whether the next token is the first.
};

class ReplaceStage : public DecodeStage {
 public:
  ReplaceStage(std::string pattern, std::string content, bool joined);
  std::unique_ptr<DecodeStage> Clone() const override;
  void Push(std::vector<std::string>& pieces) override;
  void Finish(std::vector<std::string>& pieces) override;

 private:
  std::string pattern_;
  std::string content_;
  bool joined_;
  std::string held_;  // A beginning of the pattern, at the end of what was seen.
};

// Removes up to `start` times `character` at the beginning and up to `stop` times at the end, of
// each token or, when joined, of the whole text.
class StripStage : public DecodeStage {
 public:
  StripStage(std::string character, size_t start, size_t stop, bool joined);
  std::unique_ptr<DecodeStage> Clone() const override;
  void Push(std::vector<std::string>& pieces) override;

 private:
  std::string character_;
  size_t start_;
  size_t stop_;
  bool joined_;
  std::string held_;  // Characters at the end that are removed if nothing follows.
};

// The end-of-word suffix becomes a space, but nothing in the last token.
class WordSuffixStage : public DecodeStage {
 public:
  explicit WordSuffixStage(std::string suffix);
  std::unique_ptr<DecodeStage> Clone() const override;
  void Push(std::vector<std::string>& pieces) override;
  void Finish(std::vector<std::string>& pieces) override;

 private:
  std::string suffix_;
  std::vector<std::string> last_;  // At most one token.
};

}  // namespace rootstock
