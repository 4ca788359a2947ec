// What is known of every id.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/tokenizer/vocab.h"

namespace rootstock {

// Immutable once built: read from any thread.
class TokenTable {
 public:
  struct Entry {
    std::string content;       // As the vocabulary writes it.
    std::string decoder_text;  // What the decoder is given; empty when it is the content.
    bool present = false;
    bool special = false;

    const std::string& ForDecoder() const { return decoder_text.empty() ? content : decoder_text; }
  };

  // Adds or replaces.
  void Set(int32_t id, Entry entry);
  void MarkSpecial(int32_t id) { entries_[id].special = true; }

  // Null for ids without a token, negative ones included.
  const Entry* Find(int32_t id) const;
  std::optional<int32_t> Id(std::string_view content) const;
  std::vector<int32_t> SpecialIds() const;
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }

 private:
  std::vector<Entry> entries_;
  Vocab ids_;
};

}  // namespace rootstock
