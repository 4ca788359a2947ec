// Cutting of the normalized text into words: tokenizer.json's "pre_tokenizer".
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/tokenizer/piece.h"
#include "coordinator/tokenizer/regex.h"

namespace rootstock {

// What becomes of the stretches that a pattern matched.
enum class SplitBehavior {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,  // Adjoining matches become one piece.
};

// One cutting of the text. Immutable: called from any thread.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Replaces the pieces that have no id by smaller ones; none of them is empty.
  virtual absl::Status Apply(std::vector<Piece>& pieces) const = 0;
};

class SequencePreTokenizer : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> parts);
  absl::Status Apply(std::vector<Piece>& pieces) const override;

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

class RegexSplit : public PreTokenizer {
 public:
  // With `invert`, what lies between the matches counts as matched.
  RegexSplit(std::unique_ptr<Regex> pattern, SplitBehavior behavior, bool invert);
  absl::Status Apply(std::vector<Piece>& pieces) const override;

 private:
  std::unique_ptr<Regex> pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

// Every character of a class is a match of its own.
class CharacterSplit : public PreTokenizer {
 public:
  CharacterSplit(bool (*matches)(char32_t), SplitBehavior behavior);
  absl::Status Apply(std::vector<Piece>& pieces) const override;

 private:
  bool (*matches_)(char32_t);
  SplitBehavior behavior_;
};

// Keeps runs of word characters and runs of characters that are neither these nor white space.
class WhitespaceSplitWords : public PreTokenizer {
 public:
  absl::Status Apply(std::vector<Piece>& pieces) const override;
};

// Writes each piece in the byte alphabet, after cutting it by `words` where that is set.
class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, std::unique_ptr<RegexSplit> words);
  absl::Status Apply(std::vector<Piece>& pieces) const override;

 private:
  bool add_prefix_space_;
  std::unique_ptr<RegexSplit> words_;
};

enum class PrependScheme { kAlways, kFirst, kNever };

// Writes spaces as `mark`, puts one before pieces as `prepend` says, and cuts before each.
class MetaspacePreTokenizer : public PreTokenizer {
 public:
  MetaspacePreTokenizer(std::string mark, PrependScheme prepend, bool split);
  absl::Status Apply(std::vector<Piece>& pieces) const override;

 private:
  std::string mark_;
  PrependScheme prepend_;
  bool split_;
};

// Pieces of `length` characters.
class FixedLengthSplit : public PreTokenizer {
 public:
  explicit FixedLengthSplit(size_t length) : length_(length) {}
  absl::Status Apply(std::vector<Piece>& pieces) const override;

 private:
  size_t length_;
};

// The stretches that remain of `spans` (covering a text) under `behavior`.
std::vector<Span> ApplyBehavior(const std::vector<Span>& spans, SplitBehavior behavior);

}  // namespace rootstock
