#include "tests/perf/stream_rate.h"

#include <algorithm>

#include "common/base/status.h"

namespace rootstock {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

absl::StatusOr<StreamRound> RoundOf(const std::vector<Arrivals>& streams, Clock::time_point start) {
  Clock::time_point begin = start, end = Clock::time_point::max();
  for (const Arrivals& stream : streams) {
    begin = std::max(begin, stream.front());
    end = std::min(end, stream.back());
  }
  StreamRound round;
  round.first_tokens = Seconds(begin - start);
  size_t tokens = 0;
  Clock::time_point last_token = start;
  for (const Arrivals& stream : streams) {
    tokens += stream.size();
    last_token = std::max(last_token, stream.back());
  }
  round.output_per_second = static_cast<double>(tokens) / Seconds(last_token - start);
  for (const Arrivals& stream : streams) {
    const auto first = std::lower_bound(stream.begin(), stream.end(), begin);
    const auto last = std::upper_bound(first, stream.end(), end);
    if (last - first < 2) {
      return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInvalidArgument,
                       "max-tokens", "", "a stream ended before another began: give more tokens");
    }
    round.tokens_per_second +=
        static_cast<double>(last - first - 1) / Seconds(*(last - 1) - *first);
  }
  return round;
}

}  // namespace rootstock
