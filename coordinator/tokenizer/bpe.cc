#include "coordinator/tokenizer/bpe.h"

#include <cstdio>
#include <functional>
#include <queue>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/tokenizer/utf8.h"

namespace rootstock {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// A merge that may be done at a position, unless the symbols there have changed since.
struct Candidate {
  uint32_t rank;
  int32_t position;  // Of the left symbol.
  int32_t id;        // Of the merged token.

  // The best is on top of a max-heap: lowest rank, then leftmost.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

}  // namespace

absl::StatusOr<Bpe> Bpe::Create(BpeConfig config) {
  Bpe bpe(std::move(config));
  if (bpe.config_.unk_token) {
    bpe.unk_ = bpe.TokenToId(*bpe.config_.unk_token);
    if (!bpe.unk_) {
      return absl::InvalidArgumentError(
          absl::StrCat("unk_token \"", *bpe.config_.unk_token, "\" is not in the vocabulary"));
    }
  }
  for (int byte = 0; byte < 256 && bpe.config_.byte_fallback; ++byte) {
    char token[8];
    std::snprintf(token, sizeof(token), "<0x%02X>", byte);
    bpe.byte_tokens_.push_back(bpe.TokenToId(token).value_or(-1));
  }
  RETURN_IF_ERROR(bpe.AddMerges());
  return bpe;
}

absl::Status Bpe::AddMerges() {
  merges_.reserve(config_.merges.size());
  uint32_t rank = 0;
  for (const auto& [left, right] : config_.merges) {
    const std::string_view prefix = config_.continuing_subword_prefix;
    if (right.size() < prefix.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("merges[", rank, "]: \"", right, "\" lacks continuing_subword_prefix"));
    }
    const std::string whole = left + right.substr(prefix.size());
    int32_t ids[3];
    int i = 0;
    for (const std::string* token : {&left, &right, &whole}) {
      const std::optional<int32_t> id = TokenToId(*token);
      if (!id) {
        return absl::InvalidArgumentError(absl::StrCat("merges[", rank, "] names \"", *token,
                                                       "\", which is not in the vocabulary"));
      }
      ids[i++] = *id;
    }
    merges_.insert_or_assign(PairKey(ids[0], ids[1]), Merge{rank, ids[2]});
    ++rank;
  }
  config_.merges = {};
  return absl::OkStatus();
}

std::optional<int32_t> Bpe::TokenToId(std::string_view token) const {
  const auto it = config_.vocab.find(token);
  if (it == config_.vocab.end()) return std::nullopt;
  return it->second;
}

const Bpe::Merge* Bpe::Find(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

bool Bpe::ByteTokens(std::string_view character, std::vector<Symbol>& symbols) const {
  if (!config_.byte_fallback) return false;
  for (unsigned char byte : character) {
    if (byte_tokens_[byte] < 0) return false;
  }
  for (unsigned char byte : character) symbols.push_back({byte_tokens_[byte], 0, 0, false});
  return true;
}

// One symbol a character. Unknown characters are held back while they may fuse with the next, and
// byte tokens do not end that: the order is the reference's.
void Bpe::Characters(std::string_view piece, std::vector<Symbol>& symbols) const {
  bool unknown_held = false;
  const auto add = [&](int32_t id) { symbols.push_back({id, 0, 0, false}); };
  std::string affixed;
  for (size_t pos = 0; pos < piece.size();) {
    const size_t length = Utf8Length(piece[pos]);
    std::string_view character = piece.substr(pos, length);
    const bool prefix = pos > 0 && !config_.continuing_subword_prefix.empty();
    pos += length;
    const bool suffix = pos >= piece.size() && !config_.end_of_word_suffix.empty();
    if (prefix || suffix) {
      affixed = prefix ? config_.continuing_subword_prefix : "";
      affixed += character;
      if (suffix) affixed += config_.end_of_word_suffix;
      character = affixed;
    }
    if (const std::optional<int32_t> id = TokenToId(character)) {
      if (unknown_held) add(*unk_);
      unknown_held = false;
      add(*id);
    } else if (!ByteTokens(character, symbols) && unk_) {
      if (unknown_held && !config_.fuse_unk) add(*unk_);
      unknown_held = true;
    }
  }
  if (unknown_held) add(*unk_);
  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].previous = static_cast<int32_t>(i) - 1;
    symbols[i].next = i + 1 < symbols.size() ? static_cast<int32_t>(i) + 1 : -1;
  }
}

void Bpe::MergeAll(std::vector<Symbol>& symbols) const {
  std::vector<Candidate> found;
  found.reserve(symbols.size());
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    if (const Merge* merge = Find(symbols[i].id, symbols[i + 1].id)) {
      found.push_back({merge->rank, static_cast<int32_t>(i), merge->id});
    }
  }
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(found));
  const auto offer = [&](int32_t left) {
    const Merge* merge = Find(symbols[left].id, symbols[symbols[left].next].id);
    if (merge != nullptr) queue.push({merge->rank, left, merge->id});
  };
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.position];
    if (left.gone || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    const Merge* merge = Find(left.id, right.id);
    if (merge == nullptr || merge->id != best.id) continue;  // Outdated.
    left.id = best.id;
    left.next = right.next;
    right.gone = true;
    if (left.next >= 0) symbols[left.next].previous = best.position;
    if (left.previous >= 0) offer(left.previous);
    if (left.next >= 0) offer(best.position);
  }
}

void Bpe::Tokenize(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  if (config_.ignore_merges) {
    if (const std::optional<int32_t> id = TokenToId(piece)) {
      ids.push_back(*id);
      return;
    }
  }
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  Characters(piece, symbols);
  MergeAll(symbols);
  for (const Symbol& symbol : symbols) {
    if (!symbol.gone) ids.push_back(symbol.id);
  }
}

}  // namespace rootstock
