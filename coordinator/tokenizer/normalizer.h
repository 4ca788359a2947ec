// Rewriting of the text before it is split: tokenizer.json's "normalizer".
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/tokenizer/regex.h"
#include "coordinator/tokenizer/unicode.h"

namespace rootstock {

// One rewriting of a text. Immutable: called from any thread.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual absl::Status Apply(std::string& text) const = 0;
};

// Applies its parts in order.
class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> parts);
  absl::Status Apply(std::string& text) const override;

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

class UnicodeNormalizer : public Normalizer {
 public:
  explicit UnicodeNormalizer(NormalForm form) : form_(form) {}
  absl::Status Apply(std::string& text) const override;

 private:
  NormalForm form_;
};

class LowercaseNormalizer : public Normalizer {
 public:
  absl::Status Apply(std::string& text) const override;
};

// Puts a string before every text that is not empty.
class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  absl::Status Apply(std::string& text) const override;

 private:
  std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(std::unique_ptr<Regex> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  absl::Status Apply(std::string& text) const override;

 private:
  std::unique_ptr<Regex> pattern_;
  std::string content_;
};

// Removes white space at the ends.
class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Apply(std::string& text) const override;

 private:
  bool left_;
  bool right_;
};

class StripAccentsNormalizer : public Normalizer {
 public:
  absl::Status Apply(std::string& text) const override;
};

// Writes every byte as its printable character (GPT-2's alphabet).
class ByteLevelNormalizer : public Normalizer {
 public:
  absl::Status Apply(std::string& text) const override;
};

}  // namespace rootstock
