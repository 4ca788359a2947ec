#include "coordinator/tokenizer/sentencepiece_decode.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_replace.h"
#include "coordinator/tokenizer/utf8.h"

namespace rootstock {
namespace {

using Kind = SentencePieceModel::Kind;

constexpr char kSpaceMark[] = "\xE2\x96\x81";  // U+2581

class SentencePieceStream : public DecodeStream {
 public:
  explicit SentencePieceStream(const SentencePieceDecoding& decoding) : decoding_(&decoding) {}

  std::string Append(int32_t id) override {
    std::string text;
    if (id < 0 || static_cast<size_t>(id) >= decoding_->tokens.size()) return text;
    const SentencePieceDecoding::Token& token = decoding_->tokens[id];
    if (token.kind == Kind::kByte) {
      bytes_ += token.text;
      TakeCharacters(text);
      started_ = true;
      return text;
    }
    DropBytes(text);
    if (token.kind == Kind::kControl) return text;
    std::string_view shown = token.text;
    const bool at_start = !std::exchange(started_, true);
    if (at_start && token.kind == Kind::kNormal && decoding_->drops_first_space &&
        shown.starts_with(' ')) {
      shown.remove_prefix(1);
      if (decoding_->drops_all_first_spaces) started_ = !shown.empty();
    }
    return text += shown;
  }

  std::string Flush() override {
    std::string text;
    DropBytes(text);
    return text;
  }

  std::unique_ptr<DecodeStream> Clone() const override {
    return std::make_unique<SentencePieceStream>(*this);
  }

 private:
  // Moves complete characters from bytes_ to `text`; a byte that cannot begin one is U+FFFD.
  void TakeCharacters(std::string& text) {
    while (!bytes_.empty()) {
      const size_t length = Utf8Length(bytes_[0]);
      if (ValidUtf8Prefix(std::string_view(bytes_).substr(0, length)) == length) {
        text.append(bytes_, 0, length);
        bytes_.erase(0, length);
      } else if (IsUnfinished()) {
        return;
      } else {
        text += kReplacementCharacter;
        bytes_.erase(0, 1);
      }
    }
  }

  // Whether bytes_ may still become a character.
  bool IsUnfinished() const {
    Utf8Assembler assembler;
    std::string complete;
    assembler.Add(bytes_, complete);
    return complete.empty();
  }

  void DropBytes(std::string& text) {
    for (size_t i = 0; i < bytes_.size(); ++i) text += kReplacementCharacter;
    bytes_.clear();
  }

  const SentencePieceDecoding* decoding_;
  std::string bytes_;     // Of an unfinished character: at most three.
  bool started_ = false;  // Whether the text has begun.
};

std::string TextOf(const SentencePieceModel& model, int id) {
  const std::string piece = model.Piece(id);
  switch (model.KindOf(id)) {
    case Kind::kControl:
      return {};
    case Kind::kByte:
      return std::string(1, static_cast<char>(std::strtol(piece.c_str() + 3, nullptr, 16)));
    case Kind::kUnknown:
      return model.Decode({piece});  // The model's sign for unknown characters.
    case Kind::kNormal:
      break;
  }
  return absl::StrReplaceAll(piece, {{kSpaceMark, " "}});
}

}  // namespace

SentencePieceDecoding DecodingOf(const SentencePieceModel& model) {
  SentencePieceDecoding decoding;
  const std::string mark = kSpaceMark;
  // The library does not tell its settings: see what it does.
  decoding.drops_first_space = model.Decode({mark + "a"}) == "a";
  decoding.drops_all_first_spaces = model.Decode({mark, mark + "a"}) == "a";
  decoding.tokens.reserve(model.Size());
  for (int id = 0; id < model.Size(); ++id) {
    decoding.tokens.push_back({model.KindOf(id), TextOf(model, id)});
  }
  return decoding;
}

std::unique_ptr<DecodeStream> NewSentencePieceStream(const SentencePieceDecoding& decoding) {
  return std::make_unique<SentencePieceStream>(decoding);
}

}  // namespace rootstock
