#include "coordinator/tokenizer/added_tokens.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/tokenizer/unicode.h"
#include "coordinator/tokenizer/utf8.h"

namespace rootstock {
namespace {

// The beginning of the character that ends at `end`.
size_t PreviousCharacter(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (text[end] & 0xC0) == 0x80);
  return end;
}

char32_t CharacterBefore(std::string_view text, size_t end) {
  size_t pos = PreviousCharacter(text, end);
  return NextCodePoint(text, pos);
}

char32_t CharacterAt(std::string_view text, size_t pos) { return NextCodePoint(text, pos); }

// Where the white space that ends at `end` begins.
size_t SpaceBefore(std::string_view text, size_t end) {
  while (end > 0 && IsWhitespace(CharacterBefore(text, end))) end = PreviousCharacter(text, end);
  return end;
}

// Where the white space that begins at `pos` ends.
size_t SpaceAfter(std::string_view text, size_t pos) {
  while (pos < text.size() && IsWhitespace(CharacterAt(text, pos))) pos += Utf8Length(text[pos]);
  return pos;
}

}  // namespace

absl::Status AddedTokenMatcher::Add(const AddedToken& token, std::string_view form) {
  if (form.empty()) return absl::OkStatus();
  uint32_t node = 0;
  for (char c : form) {
    const uint64_t edge = uint64_t{node} << 8 | static_cast<unsigned char>(c);
    const auto [it, added] = edges_.try_emplace(edge, static_cast<uint32_t>(token_at_.size()));
    if (added) token_at_.push_back(-1);
    node = it->second;
  }
  if (token_at_[node] >= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("added tokens \"", tokens_[token_at_[node]].content, "\" and \"",
                     token.content, "\" are spelled the same in the text"));
  }
  token_at_[node] = static_cast<int>(tokens_.size());
  starts_[static_cast<unsigned char>(form[0])] = true;
  tokens_.push_back(token);
  return absl::OkStatus();
}

AddedTokenMatcher::Match AddedTokenMatcher::Next(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    Match best{begin, begin, -1};
    uint32_t node = 0;
    for (size_t end = begin; end < text.size();) {
      const auto it = edges_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[end]));
      if (it == edges_.end()) break;
      node = it->second;
      ++end;
      if (token_at_[node] >= 0) best = {begin, end, token_at_[node]};
    }
    if (best.token >= 0) return best;
  }
  return {text.size(), text.size(), -1};
}

bool AddedTokenMatcher::Accepts(const AddedToken& token, std::string_view text, const Match& match,
                                bool special_as_text) const {
  if (special_as_text && token.special) return false;
  if (!token.single_word) return true;
  const bool left = match.begin == 0 || !IsWordCharacter(CharacterBefore(text, match.begin));
  const bool right = match.end == text.size() || !IsWordCharacter(CharacterAt(text, match.end));
  return left && right;
}

void AddedTokenMatcher::Split(const Piece& piece, bool special_as_text,
                              std::vector<Piece>& out) const {
  const std::string_view text = piece.text;
  size_t done = 0;
  const auto push = [&](size_t begin, size_t end, int32_t id) {
    out.push_back({std::string(text.substr(begin, end - begin)), id, piece.at_start && begin == 0});
  };
  for (Match match = Next(text, 0); match.token >= 0; match = Next(text, match.end)) {
    const AddedToken& token = tokens_[match.token];
    if (!Accepts(token, text, match, special_as_text)) continue;
    size_t begin = match.begin;
    size_t end = match.end;
    // White space that the token before has taken is gone.
    if (token.lstrip) begin = std::max(SpaceBefore(text, begin), done);
    if (token.rstrip) end = SpaceAfter(text, end);
    if (done < begin) push(done, begin, -1);
    push(begin, end, token.id);
    done = end;
  }
  if (done < text.size()) push(done, text.size(), -1);
}

}  // namespace rootstock
