#include "coordinator/tokenizer/decode_stage.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_replace.h"
#include "coordinator/tokenizer/byte_alphabet.h"

namespace rootstock {
namespace {

template <typename Stage>
std::unique_ptr<DecodeStage> CloneOf(const Stage& stage) {
  return std::make_unique<Stage>(stage);
}

// The byte of a token like <0x0A> (also <0x0a> and, as the reference reads it, <0x+A>), else -1.
int ByteOf(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
  };
  const int low = digit(token[4]);
  const int high = token[3] == '+' ? 0 : digit(token[3]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// The length of the longest end of `text` that is a beginning of `pattern`, but not all of it.
size_t PartialMatch(const std::string& text, const std::string& pattern) {
  for (size_t length = std::min(text.size(), pattern.size() - 1); length > 0; --length) {
    if (text.compare(text.size() - length, length, pattern, 0, length) == 0) return length;
  }
  return 0;
}

}  // namespace

std::unique_ptr<DecodeStage> JoinStage::Clone() const { return CloneOf(*this); }

void JoinStage::Push(std::vector<std::string>& pieces) {
  for (std::string& piece : pieces) {
    if (!std::exchange(first_, false)) piece.insert(0, " ");
  }
}

std::unique_ptr<DecodeStage> ByteLevelStage::Clone() const { return CloneOf(*this); }

void ByteLevelStage::Push(std::vector<std::string>& pieces) {
  for (std::string& piece : pieces) {
    std::string text;
    assembler_.Add(FromByteAlphabet(piece), text);
    piece = std::move(text);
  }
}

void ByteLevelStage::Finish(std::vector<std::string>& pieces) {
  std::string text;
  assembler_.Finish(text);
  pieces.push_back(std::move(text));
}

std::unique_ptr<DecodeStage> ByteFallbackStage::Clone() const { return CloneOf(*this); }

void ByteFallbackStage::Push(std::vector<std::string>& pieces) {
  std::vector<std::string> result;
  for (std::string& piece : pieces) {
    if (const int byte = ByteOf(piece); byte >= 0) {
      run_.push_back(static_cast<char>(byte));
      continue;
    }
    Finish(result);
    result.push_back(std::move(piece));
  }
  pieces = std::move(result);
}

void ByteFallbackStage::Finish(std::vector<std::string>& pieces) {
  if (run_.empty()) return;
  if (ValidUtf8Prefix(run_) == run_.size()) {
    pieces.push_back(run_);
  } else {
    pieces.insert(pieces.end(), run_.size(), std::string(kReplacementCharacter));
  }
  run_.clear();
}

MetaspaceStage::MetaspaceStage(std::string mark, bool keep_first)
    : mark_(std::move(mark)), drop_(!keep_first) {}

std::unique_ptr<DecodeStage> MetaspaceStage::Clone() const { return CloneOf(*this); }

void MetaspaceStage::Push(std::vector<std::string>& pieces) {
  for (std::string& piece : pieces) {
    piece = absl::StrReplaceAll(piece, {{mark_, std::exchange(drop_, false) ? "" : " "}});
  }
}

ReplaceStage::ReplaceStage(std::string pattern, std::string content, bool joined)
    : pattern_(std::move(pattern)), content_(std::move(content)), joined_(joined) {}

std::unique_ptr<DecodeStage> ReplaceStage::Clone() const { return CloneOf(*this); }

void ReplaceStage::Push(std::vector<std::string>& pieces) {
  for (std::string& piece : pieces) {
    if (!joined_) {
      piece = absl::StrReplaceAll(piece, {{pattern_, content_}});
      continue;
    }
    std::string text = std::exchange(held_, {}) + piece;
    piece.clear();
    size_t done = 0;
    for (size_t at; (at = text.find(pattern_, done)) != std::string::npos;) {
      piece.append(text, done, at - done).append(content_);
      done = at + pattern_.size();
    }
    text.erase(0, done);
    const size_t keep = PartialMatch(text, pattern_);
    held_ = text.substr(text.size() - keep);
    piece.append(text, 0, text.size() - keep);
  }
}

void ReplaceStage::Finish(std::vector<std::string>& pieces) {
  pieces.push_back(std::exchange(held_, {}));
}

StripStage::StripStage(std::string character, size_t start, size_t stop, bool joined)
    : character_(std::move(character)), start_(start), stop_(stop), joined_(joined) {}

std::unique_ptr<DecodeStage> StripStage::Clone() const { return CloneOf(*this); }

void StripStage::Push(std::vector<std::string>& pieces) {
  for (std::string& piece : pieces) {
    size_t left = start_;
    size_t begin = 0;
    for (; left > 0 && piece.compare(begin, character_.size(), character_) == 0; --left) {
      begin += character_.size();
    }
    std::string text = std::exchange(held_, {}) + piece.substr(begin);
    if (joined_ && !piece.empty()) start_ = begin == piece.size() ? left : 0;
    size_t end = text.size();
    for (size_t n = 0; n < stop_ && std::string_view(text.data(), end).ends_with(character_); ++n) {
      end -= character_.size();
    }
    if (joined_) held_ = text.substr(end);
    piece = text.substr(0, end);
  }
}

WordSuffixStage::WordSuffixStage(std::string suffix) : suffix_(std::move(suffix)) {}

std::unique_ptr<DecodeStage> WordSuffixStage::Clone() const { return CloneOf(*this); }

void WordSuffixStage::Push(std::vector<std::string>& pieces) {
  std::vector<std::string> result;
  for (std::string& piece : pieces) {
    if (!last_.empty()) result.push_back(absl::StrReplaceAll(last_.front(), {{suffix_, " "}}));
    last_.clear();
    last_.push_back(std::move(piece));
  }
  pieces = std::move(result);
}

void WordSuffixStage::Finish(std::vector<std::string>& pieces) {
  if (last_.empty()) return;
  pieces.push_back(absl::StrReplaceAll(last_.front(), {{suffix_, ""}}));
  last_.clear();
}

}  // namespace rootstock
