#include "coordinator/tokenizer/tokenizer.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/tokenizer/json_tokenizer.h"
#include "coordinator/tokenizer/sentencepiece_tokenizer.h"
#include "coordinator/tokenizer/utf8.h"

namespace rootstock {

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::filesystem::path& model_dir) {
  std::error_code ignored;
  const std::filesystem::path json = model_dir / "tokenizer.json";
  if (std::filesystem::exists(json, ignored)) return LoadJsonTokenizer(json);
  const std::filesystem::path model = model_dir / "tokenizer.model";
  if (std::filesystem::exists(model, ignored)) return LoadSentencePieceTokenizer(model);
  return absl::NotFoundError(
      absl::StrCat(model_dir.string(), " has neither tokenizer.json nor tokenizer.model"));
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::unique_ptr<DecodeStream> stream = NewDecodeStream(skip_special);
  std::string text;
  for (int32_t id : ids) text += stream->Append(id);
  return text += stream->Flush();
}

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer,
                                               std::span<const int32_t> context, bool skip_special)
    : stream_(tokenizer.NewDecodeStream(skip_special)) {
  if (context.empty()) return;
  for (int32_t id : context) stream_->Append(id);
  held_by_context_ = stream_->Clone()->Flush();
}

std::string IncrementalDetokenizer::Append(int32_t id) {
  return WithoutContext(stream_->Append(id));
}

std::string IncrementalDetokenizer::Flush() { return WithoutContext(stream_->Flush()); }

std::string IncrementalDetokenizer::WithoutContext(std::string text) {
  if (held_by_context_.empty() || text.empty()) return text;
  size_t same = 0;
  while (same < text.size()) {
    const size_t length = Utf8Length(text[same]);
    if (text.compare(same, length, held_by_context_, same, length) != 0) break;
    same += length;
  }
  if (same < text.size()) {
    held_by_context_.clear();
  } else {
    held_by_context_.erase(0, same);
  }
  text.erase(0, same);
  return text;
}

}  // namespace rootstock
