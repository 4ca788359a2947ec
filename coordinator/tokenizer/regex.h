// Split patterns of tokenizer.json (Oniguruma's Ruby syntax) run by ICU.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rootstock {

// A stretch of a text, in bytes, that a pattern matched or that lies between its matches.
struct Span {
  size_t begin;
  size_t end;
  bool match;
};

// Rewrites an Oniguruma pattern so that ICU (flags: multi-line, Unix lines) matches the same
// texts, with the properties of Unicode 16.0. UNIMPLEMENTED, naming the construct, for what has no
// equivalent.
absl::StatusOr<std::string> TranslatePattern(std::string_view pattern);

// A compiled pattern. Immutable: any thread may make matchers of it.
class Regex {
 public:
  // INVALID_ARGUMENT when the pattern does not compile.
  static absl::StatusOr<std::unique_ptr<Regex>> Compile(std::string_view pattern);
  virtual ~Regex() = default;

  // A matcher's working memory. Used by one thread at a time; the Regex must outlive it.
  class Matcher {
   public:
    virtual ~Matcher() = default;
    // Cuts `text` (valid UTF-8) into matches and what lies between them: adjoining, never empty
    // save for empty matches. INVALID_ARGUMENT when matching needs more memory than it may take.
    virtual absl::Status Cut(std::string_view text, std::vector<Span>& spans) = 0;
  };
  virtual absl::StatusOr<std::unique_ptr<Matcher>> NewMatcher() const = 0;
};

}  // namespace rootstock
