#include "coordinator/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "coordinator/tokenizer/byte_alphabet.h"
#include "coordinator/tokenizer/unicode.h"
#include "coordinator/tokenizer/utf8.h"

namespace rootstock {
namespace {

// Replaces every piece without an id by the ones that `cut(piece, out)` appends.
template <typename Cut>
absl::Status ForEachText(std::vector<Piece>& pieces, Cut cut) {
  std::vector<Piece> result;
  result.reserve(pieces.size());
  for (Piece& piece : pieces) {
    if (piece.id >= 0) {
      result.push_back(std::move(piece));
    } else if (absl::Status status = cut(piece, result); !status.ok()) {
      return status;
    }
  }
  pieces = std::move(result);
  return absl::OkStatus();
}

void Push(const Piece& piece, size_t begin, size_t end, std::vector<Piece>& out) {
  if (begin == end) return;
  out.push_back({piece.text.substr(begin, end - begin), -1, piece.at_start && begin == 0});
}

void PushSpans(const Piece& piece, const std::vector<Span>& spans, SplitBehavior behavior,
               std::vector<Piece>& out) {
  for (const Span& span : ApplyBehavior(spans, behavior)) Push(piece, span.begin, span.end, out);
}

// Merges each match with the stretch before it, unless that is a match too.
std::vector<Span> MergeWithPrevious(const std::vector<Span>& spans) {
  std::vector<Span> result;
  bool after_match = false;
  for (const Span& span : spans) {
    if (span.match && !after_match && !result.empty()) {
      result.back().end = span.end;
    } else {
      result.push_back(span);
    }
    after_match = span.match;
  }
  return result;
}

std::vector<Span> MergeWithNext(const std::vector<Span>& spans) {
  std::vector<Span> result;
  bool before_match = false;
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    if (span->match && !before_match && !result.empty()) {
      result.back().begin = span->begin;
    } else {
      result.push_back(*span);
    }
    before_match = span->match;
  }
  std::reverse(result.begin(), result.end());
  return result;
}

std::vector<Span> MergeContiguous(const std::vector<Span>& spans) {
  std::vector<Span> result;
  bool previous_match = false;
  for (const Span& span : spans) {
    if (span.match == previous_match && !result.empty()) {
      result.back().end = span.end;
    } else {
      result.push_back(span);
    }
    previous_match = span.match;
  }
  return result;
}

}  // namespace

std::vector<Span> ApplyBehavior(const std::vector<Span>& spans, SplitBehavior behavior) {
  std::vector<Span> result;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return spans;
    case SplitBehavior::kRemoved:
      std::copy_if(spans.begin(), spans.end(), std::back_inserter(result),
                   [](const Span& span) { return !span.match; });
      return result;
    case SplitBehavior::kMergedWithPrevious:
      return MergeWithPrevious(spans);
    case SplitBehavior::kMergedWithNext:
      return MergeWithNext(spans);
    case SplitBehavior::kContiguous:
      return MergeContiguous(spans);
  }
  return result;
}

SequencePreTokenizer::SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> parts)
    : parts_(std::move(parts)) {}

absl::Status SequencePreTokenizer::Apply(std::vector<Piece>& pieces) const {
  for (const auto& part : parts_) {
    RETURN_IF_ERROR(part->Apply(pieces));
  }
  return absl::OkStatus();
}

RegexSplit::RegexSplit(std::unique_ptr<Regex> pattern, SplitBehavior behavior, bool invert)
    : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

absl::Status RegexSplit::Apply(std::vector<Piece>& pieces) const {
  ASSIGN_OR_RETURN(std::unique_ptr<Regex::Matcher> matcher, pattern_->NewMatcher());
  std::vector<Span> spans;
  return ForEachText(pieces, [&](const Piece& piece, std::vector<Piece>& out) {
    absl::Status status = matcher->Cut(piece.text, spans);
    if (!status.ok()) return status;
    for (Span& span : spans) span.match ^= invert_;
    PushSpans(piece, spans, behavior_, out);
    return status;
  });
}

CharacterSplit::CharacterSplit(bool (*matches)(char32_t), SplitBehavior behavior)
    : matches_(matches), behavior_(behavior) {}

absl::Status CharacterSplit::Apply(std::vector<Piece>& pieces) const {
  std::vector<Span> spans;
  return ForEachText(pieces, [&](const Piece& piece, std::vector<Piece>& out) {
    spans.clear();
    for (size_t pos = 0; pos < piece.text.size();) {
      const size_t begin = pos;
      const bool match = matches_(NextCodePoint(piece.text, pos));
      if (match || spans.empty() || spans.back().match) {
        spans.push_back({begin, pos, match});
      } else {
        spans.back().end = pos;
      }
    }
    PushSpans(piece, spans, behavior_, out);
    return absl::OkStatus();
  });
}

absl::Status WhitespaceSplitWords::Apply(std::vector<Piece>& pieces) const {
  enum Kind { kSpace, kWord, kOther };
  const auto kind_of = [](char32_t c) {
    return IsWordCharacter(c) ? kWord : IsWhitespace(c) ? kSpace : kOther;
  };
  return ForEachText(pieces, [&](const Piece& piece, std::vector<Piece>& out) {
    size_t begin = 0;
    Kind kind = kSpace;
    for (size_t pos = 0; pos < piece.text.size();) {
      const size_t here = pos;
      const Kind next = kind_of(NextCodePoint(piece.text, pos));
      if (next == kind) continue;
      if (kind != kSpace) Push(piece, begin, here, out);
      begin = here;
      kind = next;
    }
    if (kind != kSpace) Push(piece, begin, piece.text.size(), out);
    return absl::OkStatus();
  });
}

ByteLevelPreTokenizer::ByteLevelPreTokenizer(bool add_prefix_space,
                                             std::unique_ptr<RegexSplit> words)
    : add_prefix_space_(add_prefix_space), words_(std::move(words)) {}

absl::Status ByteLevelPreTokenizer::Apply(std::vector<Piece>& pieces) const {
  if (add_prefix_space_) {
    for (Piece& piece : pieces) {
      if (piece.id < 0 && !piece.text.starts_with(' ')) piece.text.insert(0, " ");
    }
  }
  if (words_ != nullptr) {
    RETURN_IF_ERROR(words_->Apply(pieces));
  }
  for (Piece& piece : pieces) {
    if (piece.id < 0) piece.text = ToByteAlphabet(piece.text);
  }
  return absl::OkStatus();
}

MetaspacePreTokenizer::MetaspacePreTokenizer(std::string mark, PrependScheme prepend, bool split)
    : mark_(std::move(mark)), prepend_(prepend), split_(split) {}

absl::Status MetaspacePreTokenizer::Apply(std::vector<Piece>& pieces) const {
  return ForEachText(pieces, [&](Piece& piece, std::vector<Piece>& out) {
    piece.text = absl::StrReplaceAll(piece.text, {{" ", mark_}});
    const bool prepend =
        prepend_ == PrependScheme::kAlways || (prepend_ == PrependScheme::kFirst && piece.at_start);
    if (prepend && !piece.text.starts_with(mark_)) piece.text.insert(0, mark_);
    if (!split_) {
      out.push_back(std::move(piece));
      return absl::OkStatus();
    }
    // A mark that follows a mark stands alone: only the last of a run joins the word behind it.
    size_t begin = 0;
    for (size_t at = piece.text.find(mark_, 1); at != std::string::npos;
         at = piece.text.find(mark_, at + 1)) {
      Push(piece, begin, at, out);
      begin = at;
    }
    Push(piece, begin, piece.text.size(), out);
    return absl::OkStatus();
  });
}

absl::Status FixedLengthSplit::Apply(std::vector<Piece>& pieces) const {
  return ForEachText(pieces, [&](const Piece& piece, std::vector<Piece>& out) {
    size_t begin = 0;
    size_t characters = 0;
    for (size_t pos = 0; pos < piece.text.size();) {
      pos += Utf8Length(piece.text[pos]);
      if (++characters % length_ != 0) continue;
      Push(piece, begin, pos, out);
      begin = pos;
    }
    Push(piece, begin, piece.text.size(), out);
    return absl::OkStatus();
  });
}

}  // namespace rootstock
