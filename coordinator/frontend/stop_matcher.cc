#include "coordinator/frontend/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace rootstock {

StopMatcher::Shown StopMatcher::Add(std::string_view text) {
  const size_t old_size = held_.size();
  held_.append(text);
  if (auto matched = Match(old_size)) return *std::move(matched);
  const size_t shown = held_.size() - HeldSize();
  Shown out{held_.substr(0, shown), std::nullopt};
  held_.erase(0, shown);
  return out;
}

StopMatcher::Shown StopMatcher::AddUnmatched(std::string_view text) {
  Shown out{std::exchange(held_, {}), std::nullopt};
  out.text.append(text);
  return out;
}

std::string StopMatcher::Flush() { return std::exchange(held_, {}); }

// A stop string that ends in the text from `old_size` on.
std::optional<StopMatcher::Shown> StopMatcher::Match(size_t old_size) {
  size_t best_begin = 0, best_end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t from = old_size >= stop.size() ? old_size - stop.size() + 1 : 0;
    const size_t begin = held_.find(stop, from);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < best_end || (end == best_end && begin < best_begin)) {
      best_begin = begin;
      best_end = end;
    }
  }
  if (best_end == std::string::npos) return std::nullopt;
  Shown out{held_.substr(0, include_ ? best_end : best_begin),
            held_.substr(best_begin, best_end - best_begin)};
  held_.clear();
  return out;
}

// The longest end of held_ that a stop string begins with.
size_t StopMatcher::HeldSize() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > longest; --size) {
      if (held_.compare(held_.size() - size, size, stop, 0, size) == 0) longest = size;
    }
  }
  return longest;
}

}  // namespace rootstock
