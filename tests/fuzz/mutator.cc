#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace rootstock {
namespace {

constexpr std::array kNumbers = {"0",
                                 "1",
                                 "-1",
                                 "2",
                                 "7",
                                 "255",
                                 "256",
                                 "65536",
                                 "2147483647",
                                 "2147483648",
                                 "4294967296",
                                 "0.5",
                                 "-0.0",
                                 "1e5",
                                 "NaN",
                                 "1e999",
                                 "9223372036854775807",
                                 "9223372036854775808",
                                 "18446744073709551616"};
constexpr std::array kValues = {"null", "true", "false", "[]", "{}", "\"\"", "[[]]", "\"a\"", "0"};

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

}  // namespace

Mutator::Mutator(uint64_t seed, std::vector<std::string> words, size_t max_bytes)
    : random_(seed), words_(std::move(words)), max_bytes_(max_bytes) {}

std::string Mutator::Mutate(std::string input, const std::string& other) {
  const size_t changes = Below(4) > 0 ? 1 : 1 + Below(8);
  for (size_t i = 0; i < changes; ++i) Change(input, other);
  if (input.size() > max_bytes_) input.resize(max_bytes_);
  return input;
}

void Mutator::Change(std::string& text, const std::string& other) {
  if (text.empty()) text = other;
  if (text.empty()) text = "{}";
  const size_t at = Below(text.size());
  const size_t length = 1 + Below(std::min<size_t>(text.size() - at, 64));
  switch (Below(10)) {
    case 0:
      text[at] = static_cast<char>(text[at] ^ (1 << Below(8)));
      return;
    case 1:
      text[at] = static_cast<char>(Below(256));
      return;
    case 2:
      text.erase(at, length);
      return;
    case 3:
      text.insert(at, 1 + Below(4), static_cast<char>(Below(256)));
      return;
    case 4:
      text.insert(Below(text.size()), text.substr(at, length));
      return;
    case 5:
    case 6:
      text.insert(at, words_[Below(words_.size())]);
      return;
    case 7:
      return ReplaceNumber(text);
    case 8:
      return ReplaceValue(text);
    default:
      text = text.substr(0, at) + other.substr(Below(other.size() + 1));
  }
}

// The digits at or after a random place become a number that is often wrong.
void Mutator::ReplaceNumber(std::string& text) {
  const size_t from = Below(text.size());
  const auto begin = std::find_if(text.begin() + static_cast<long>(from), text.end(), IsDigit);
  const auto end = std::find_if_not(begin, text.end(), IsDigit);
  text.replace(begin, end, kNumbers[Below(kNumbers.size())]);
}

// What follows a random colon becomes a value of another type.
void Mutator::ReplaceValue(std::string& text) {
  const size_t colon = text.find(':', Below(text.size()));
  if (colon == std::string::npos) return;
  const size_t end = text.find_first_of(",}]", colon);
  text.replace(colon + 1, end == std::string::npos ? end : end - colon - 1,
               kValues[Below(kValues.size())]);
}

}  // namespace rootstock
