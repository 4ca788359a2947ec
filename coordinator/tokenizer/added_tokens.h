// Tokens that are found in the text before the model's own tokenization.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "coordinator/tokenizer/piece.h"

namespace rootstock {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;   // Found in the normalized text, in its normalized form.
  bool lstrip = false;       // Takes the white space on its left with it.
  bool rstrip = false;       // ... and on its right.
  bool single_word = false;  // Only where no word character adjoins it.
};

// Finds a set of added tokens in a text: at each place the longest, from left to right. Immutable
// once built: read from any thread.
class AddedTokenMatcher {
 public:
  // `form` is how the text spells the token. INVALID_ARGUMENT when another token has the same form.
  absl::Status Add(const AddedToken& token, std::string_view form);

  bool empty() const { return tokens_.empty(); }

  // Appends `piece` to `out`, cut at the tokens found. With special_as_text, special tokens stay
  // text; as in the reference implementation they still hide shorter tokens inside them.
  void Split(const Piece& piece, bool special_as_text, std::vector<Piece>& out) const;

 private:
  struct Match {
    size_t begin;
    size_t end;
    int token;  // Index into tokens_; -1 for none.
  };
  Match Next(std::string_view text, size_t from) const;
  bool Accepts(const AddedToken& token, std::string_view text, const Match& match,
               bool special_as_text) const;

  // A trie over bytes: (node << 8 | byte) to node; node 0 is the root.
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int> token_at_{-1};  // By node.
  bool starts_[256] = {};          // Whether any token starts with this byte.
  std::vector<AddedToken> tokens_;
};

}  // namespace rootstock
