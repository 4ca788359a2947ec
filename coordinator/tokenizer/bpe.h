// Byte-pair encoding over a vocabulary and ranked merges.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "coordinator/tokenizer/vocab.h"

namespace rootstock {

struct BpeConfig {
  Vocab vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // Best first.
  std::optional<std::string> unk_token;
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool fuse_unk = false;
  bool byte_fallback = false;  // Characters without a token become <0xHH> tokens where these exist.
  bool ignore_merges = false;  // A piece that is a token itself is that token.
};

// Immutable: read from any thread.
class Bpe {
 public:
  // INVALID_ARGUMENT, naming the token, when a merge or unk_token is not in the vocabulary.
  static absl::StatusOr<Bpe> Create(BpeConfig config);

  // Appends the ids of `piece`. O(n log n) in its length.
  void Tokenize(std::string_view piece, std::vector<int32_t>& ids) const;

  std::optional<int32_t> TokenToId(std::string_view token) const;
  const Vocab& vocab() const { return config_.vocab; }

 private:
  struct Merge {
    uint32_t rank;
    int32_t id;  // Of the merged token.
  };
  struct Symbol {
    int32_t id;
    int32_t previous;
    int32_t next;  // -1 at the end.
    bool gone;     // Merged into its left neighbour.
  };

  explicit Bpe(BpeConfig config) : config_(std::move(config)) {}
  absl::Status AddMerges();
  const Merge* Find(int32_t left, int32_t right) const;
  void Characters(std::string_view piece, std::vector<Symbol>& symbols) const;
  bool ByteTokens(std::string_view character, std::vector<Symbol>& symbols) const;
  void MergeAll(std::vector<Symbol>& symbols) const;

  BpeConfig config_;
  absl::flat_hash_map<uint64_t, Merge> merges_;  // By left << 32 | right.
  std::optional<int32_t> unk_;
  std::vector<int32_t> byte_tokens_;  // By byte; -1 where the vocabulary has none.
};

}  // namespace rootstock
