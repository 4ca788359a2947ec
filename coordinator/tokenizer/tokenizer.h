// Text to token ids and back, as the model's own tokenizer does it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace rootstock {

struct EncodeOptions {
  // Add what the model's post-processor adds around a text: beginning of sequence and the like.
  bool add_special_tokens = true;
  // Special tokens written out in the text become their ids. When false they are plain text; added
  // tokens that are not special are always recognised.
  bool parse_special = false;
};

// Turns the ids of one sequence into text, piece by piece. Every returned piece is valid UTF-8 and
// ends at a character's end. The concatenation of all Append() results and of Flush() is the
// decoded text of the ids, exactly as Tokenizer::Decode gives it. Ids without a token decode to
// nothing. Owned by one sequence; used by one thread at a time. The tokenizer must outlive it.
class DecodeStream {
 public:
  virtual ~DecodeStream() = default;
  virtual std::string Append(int32_t id) = 0;
  // The text still held back. After it, only destruction is allowed.
  virtual std::string Flush() = 0;
  virtual std::unique_ptr<DecodeStream> Clone() const = 0;
};

// A model's tokenizer. Immutable after Load: all methods may be called from any thread at once.
class Tokenizer {
 public:
  // Reads model_dir/tokenizer.json, or, where there is none, model_dir/tokenizer.model
  // (SentencePiece; add_bos_token and add_eos_token are taken from tokenizer_config.json, else true
  // and false). Errors: NOT_FOUND when neither file exists; INVALID_ARGUMENT, naming file and
  // field, when it is malformed; UNIMPLEMENTED, naming the component, when it needs one that is not
  // built in.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::filesystem::path& model_dir);

  virtual ~Tokenizer() = default;

  // The ids of `text`. INVALID_ARGUMENT when the text is not valid UTF-8 (the message names the
  // byte) or when the model's split pattern cannot be run on it.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                                      const EncodeOptions& options) const = 0;

  // The text of `ids`. Ids without a token (a model's padding rows, negative ids) decode to
  // nothing; bytes that form no character become U+FFFD. With skip_special, special tokens are left
  // out.
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const;

  virtual std::unique_ptr<DecodeStream> NewDecodeStream(bool skip_special) const = 0;

  // The token as the vocabulary writes it (byte-level and "▁" forms included); nullopt when the id
  // has none.
  virtual std::optional<std::string> IdToToken(int32_t id) const = 0;
  virtual std::optional<int32_t> TokenToId(std::string_view token) const = 0;

  virtual bool IsSpecial(int32_t id) const = 0;
  // All special tokens' ids, ascending.
  virtual std::vector<int32_t> SpecialIds() const = 0;
  // One more than the largest id that has a token.
  virtual int32_t VocabSize() const = 0;
};

// The text of a sequence's generated ids, one after the other. With context C (the prompt's ids)
// and appended ids A, the concatenation of everything returned is Decode(C + A) without the longest
// common prefix, in whole characters, that it has with Decode(C). So with no context it is
// Decode(A); with one, a word's leading space that sentencepiece-style decoders drop at a text's
// beginning is kept, and a character that the prompt began is returned when its last byte arrives.
//
// C may be the prompt's tail instead of all of it when the tail starts at a token that begins a
// character and holds at least one token that decodes to text.
//
// Text is held back only while it is undecided: bytes of an unfinished character, and, for decoders
// with byte fallback, a run of byte tokens up to the next other token (the reference decodes the
// run as a whole: one bad byte in it makes every byte of it U+FFFD).
//
// Owned by one sequence; used by one thread at a time. The tokenizer must outlive it.
class IncrementalDetokenizer {
 public:
  IncrementalDetokenizer(const Tokenizer& tokenizer, std::span<const int32_t> context,
                         bool skip_special);

  // The newly complete text: valid UTF-8, never part of a character, often empty.
  std::string Append(int32_t id);
  // What is still held back, unfinished characters as U+FFFD. After it, only destruction is
  // allowed.
  std::string Flush();

 private:
  std::string WithoutContext(std::string text);

  std::unique_ptr<DecodeStream> stream_;
  std::string held_by_context_;  // Text of the context that the stream has not yet returned.
};

}  // namespace rootstock
