// What is known of every id.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "coordinator/tokenizer/vocab.h"

namespace rootstock {

// Immutable once built: read from any thread. Takes memory for its tokens, not for ids without one:
// a file of a few bytes may give a token any id.
class TokenTable {
 public:
  struct Entry {
    std::string content;       // As the vocabulary writes it.
    std::string decoder_text;  // What the decoder is given; empty when it is the content.
    bool special = false;

    const std::string& ForDecoder() const { return decoder_text.empty() ? content : decoder_text; }
  };

  // Adds or replaces.
  void Set(int32_t id, Entry entry);
  // By spelling: any token that the decoder sees as one of these.
  void MarkSpecial(const absl::flat_hash_set<std::string>& spellings);

  // Null for ids without a token, negative ones included.
  const Entry* Find(int32_t id) const;
  std::optional<int32_t> Id(std::string_view content) const;
  std::vector<int32_t> SpecialIds() const;  // Ascending.
  // One more than the largest id.
  int32_t size() const { return size_; }

 private:
  absl::flat_hash_map<int32_t, Entry> entries_;
  int32_t size_ = 0;
  Vocab ids_;
};

}  // namespace rootstock
