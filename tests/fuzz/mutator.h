// Small random changes to texts.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace rootstock {

// The same seed gives the same changes. Not thread-safe.
class Mutator {
 public:
  // `words` are inserted as they are; outputs are at most `max_bytes`.
  Mutator(uint64_t seed, std::vector<std::string> words, size_t max_bytes);

  // `input` with one to eight changes; `other` lends its parts.
  std::string Mutate(std::string input, const std::string& other);
  // In [0, count).
  size_t Below(size_t count) { return random_() % count; }

 private:
  void Change(std::string& text, const std::string& other);
  void ReplaceNumber(std::string& text);
  void ReplaceValue(std::string& text);

  std::mt19937_64 random_;
  const std::vector<std::string> words_;
  const size_t max_bytes_;
};

}  // namespace rootstock
