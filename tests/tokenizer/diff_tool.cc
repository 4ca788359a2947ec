// Runs a tokenizer over records from stdin and writes what it gives, for differential.py to
// compare.
//
// usage: tokenizer_diff_tool MODEL_DIR < requests > answers        (all numbers little-endian)
// request: u8 kind, u32 n, payload. kind 0: n bytes of text, flags in bits 1 (add_special_tokens)
//          and 2 (parse_special) of kind; kind 1: n ids (i32) to decode.
// answer:  i32 n (-1: an error), then n ids; u32 bytes and the decoded text with special tokens;
//          u32 bytes and the text without. After an error: u32 bytes and its message.
// Each text is also decoded id by id, in two parts; exits 1 if that gives another text.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace {

using rootstock::EncodeOptions;
using rootstock::IncrementalDetokenizer;
using rootstock::Tokenizer;

bool Read(void* data, size_t size) { return std::fread(data, 1, size, stdin) == size; }
void Write(const void* data, size_t size) { std::fwrite(data, 1, size, stdout); }

void WriteText(const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  Write(&size, sizeof(size));
  Write(text.data(), text.size());
}

std::string DecodeInSteps(const Tokenizer& tokenizer, std::span<const int32_t> ids, bool skip) {
  IncrementalDetokenizer detokenizer(tokenizer, {}, skip);
  std::string text;
  for (int32_t id : ids) text += detokenizer.Append(id);
  return text += detokenizer.Flush();
}

// With the first half as context: what the halves give must differ from the whole only where the
// context's own text ends, and there it must be the whole's remainder.
bool ContextAgrees(const Tokenizer& tokenizer, std::span<const int32_t> ids, bool skip,
                   const std::string& whole) {
  const size_t half = ids.size() / 2;
  const std::string before = tokenizer.Decode(ids.first(half), skip);
  IncrementalDetokenizer detokenizer(tokenizer, ids.first(half), skip);
  std::string rest;
  for (int32_t id : ids.subspan(half)) rest += detokenizer.Append(id);
  rest += detokenizer.Flush();
  const size_t common = whole.size() - std::min(rest.size(), whole.size());
  return whole.ends_with(rest) && before.compare(0, common, whole, 0, common) == 0;
}

bool WriteDecoded(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  bool agrees = true;
  for (bool skip : {false, true}) {
    const std::string whole = tokenizer.Decode(ids, skip);
    agrees &= DecodeInSteps(tokenizer, ids, skip) == whole;
    agrees &= ContextAgrees(tokenizer, ids, skip, whole);
    WriteText(whole);
  }
  return agrees;
}

bool Answer(const Tokenizer& tokenizer, uint8_t kind, uint32_t n) {
  std::vector<int32_t> ids;
  if (kind & 1) {
    ids.resize(n);
    if (!Read(ids.data(), n * sizeof(int32_t))) return false;
  } else {
    std::string text(n, '\0');
    if (!Read(text.data(), n)) return false;
    absl::StatusOr<std::vector<int32_t>> encoded = tokenizer.Encode(
        text,
        EncodeOptions{.add_special_tokens = (kind & 2) != 0, .parse_special = (kind & 4) != 0});
    if (!encoded.ok()) {
      const int32_t failed = -1;
      Write(&failed, sizeof(failed));
      WriteText(std::string(encoded.status().message()));
      return true;
    }
    ids = *std::move(encoded);
  }
  const auto size = static_cast<int32_t>(ids.size());
  Write(&size, sizeof(size));
  Write(ids.data(), ids.size() * sizeof(int32_t));
  if (WriteDecoded(tokenizer, ids)) return true;
  std::fprintf(stderr, "decoding in steps differs from decoding at once\n");
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s MODEL_DIR < requests > answers\n", argv[0]);
    return 2;
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    return 1;
  }
  uint8_t kind = 0;
  uint32_t n = 0;
  while (Read(&kind, sizeof(kind))) {
    if (!Read(&n, sizeof(n)) || !Answer(**tokenizer, kind, n)) return 1;
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}
