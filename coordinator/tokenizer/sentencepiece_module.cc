// Built as a module of its own: see sentencepiece_model.cc.
#include <sentencepiece_processor.h>

#include "coordinator/tokenizer/sentencepiece_model.h"

namespace rootstock {
namespace {

class Model : public SentencePieceModel {
 public:
  bool LoadFile(const std::string& file, std::string& error) {
    const sentencepiece::util::Status status = processor_.Load(file);
    if (!status.ok()) error = status.ToString();
    return status.ok();
  }

  bool Encode(std::string_view text, std::vector<int>& ids, std::string& error) const override {
    std::vector<int> encoded;
    const sentencepiece::util::Status status = processor_.Encode(text, &encoded);
    if (!status.ok()) error = status.ToString();
    ids.insert(ids.end(), encoded.begin(), encoded.end());
    return status.ok();
  }

  std::string Decode(const std::vector<std::string>& pieces) const override {
    std::string text;
    return processor_.Decode(pieces, &text).ok() ? text : std::string();
  }

  int Size() const override { return processor_.GetPieceSize(); }
  std::string Piece(int id) const override { return processor_.IdToPiece(id); }
  Kind KindOf(int id) const override {
    if (processor_.IsControl(id)) return Kind::kControl;
    if (processor_.IsUnknown(id)) return Kind::kUnknown;
    return processor_.IsByte(id) ? Kind::kByte : Kind::kNormal;
  }
  int BosId() const override { return processor_.bos_id(); }
  int EosId() const override { return processor_.eos_id(); }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace
}  // namespace rootstock

extern "C" __attribute__((visibility("default"))) rootstock::SentencePieceModel*
rootstock_load_sentencepiece(const std::string& file, std::string& error) {
  auto model = std::make_unique<rootstock::Model>();
  return model->LoadFile(file, error) ? model.release() : nullptr;
}
