// Finds stop strings in text that arrives in pieces.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rootstock {

// Text goes in as it is made and comes out as soon as it can't be part of a stop string any more.
// The match is the one that is complete first, the longest of those: it does not depend on how the
// text was cut. One frontend thread only.
class StopMatcher {
 public:
  // `stops`: valid UTF-8, none empty.
  StopMatcher(std::vector<std::string> stops, bool include_stop_in_output)
      : stops_(std::move(stops)), include_(include_stop_in_output) {}

  struct Shown {
    std::string text;                  // whole characters
    std::optional<std::string> match;  // nothing may be added after it
  };
  Shown Add(std::string_view text);
  // Text that no stop string may begin in, nor end in.
  Shown AddUnmatched(std::string_view text);
  // What is held back, when the text is at its end.
  std::string Flush();

 private:
  std::optional<Shown> Match(size_t old_size);
  size_t HeldSize() const;

  const std::vector<std::string> stops_;
  const bool include_;
  std::string held_;  // may be the beginning of a stop string
};

}  // namespace rootstock
