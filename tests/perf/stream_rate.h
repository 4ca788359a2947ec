// From when tokens came to rates.
#pragma once

#include <chrono>
#include <vector>

#include "absl/status/statusor.h"

namespace rootstock {

// When each token of one stream came, ascending, at least one.
using Arrivals = std::vector<std::chrono::steady_clock::time_point>;

// What a round of concurrent streams showed.
struct StreamRound {
  double tokens_per_second = 0;  // of all together, while all decode
  double first_tokens = 0;       // seconds from `start` until every stream has its first
  double output_per_second = 0;  // of all together, from `start` to the last token
};

// Of every stream the time from token to token between the last first token and the first last one.
// A stream's rate is that of its own tokens: how those of one step spread over the streams, and
// that its first token opens the time, plays no part.
absl::StatusOr<StreamRound> RoundOf(const std::vector<Arrivals>& streams,
                                    std::chrono::steady_clock::time_point start);

}  // namespace rootstock
