// A SentencePiece model behind standard types: the library's header declares names that clash with
// Abseil's, so only sentencepiece_model.cc includes it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace rootstock {

// Immutable once loaded: called from any thread.
class SentencePieceModel {
 public:
  enum class Kind { kNormal, kUnknown, kControl, kByte };

  // Null, with `error` set, when the file cannot be read as a model.
  static std::unique_ptr<SentencePieceModel> Load(const std::string& file, std::string& error);
  virtual ~SentencePieceModel() = default;

  // Appends the ids of `text` (valid UTF-8). False, with `error` set, when it fails.
  virtual bool Encode(std::string_view text, std::vector<int>& ids, std::string& error) const = 0;

  // The text of pieces given by their spelling.
  virtual std::string Decode(const std::vector<std::string>& pieces) const = 0;

  virtual int Size() const = 0;
  virtual std::string Piece(int id) const = 0;  // 0 <= id < Size(), as below.
  virtual Kind KindOf(int id) const = 0;
  virtual int BosId() const = 0;  // -1 for none.
  virtual int EosId() const = 0;
};

}  // namespace rootstock
