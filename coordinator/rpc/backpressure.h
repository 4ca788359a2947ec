// How long a stream's messages wait for its client.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "common/metrics/metrics.h"

namespace rootstock {

// stream_backpressure_seconds_total, and the monotonic clock that it is measured by.
struct StreamMetrics {
  Counter backpressure_seconds;
  std::function<absl::Time()> clock;
};

// One stream's share of it: from the moment when a message waits behind another one until the
// client has taken all. Its owner locks.
class Backpressure {
 public:
  explicit Backpressure(StreamMetrics metrics) : metrics_(std::move(metrics)) {}
  // To be called when the number changed: messages made and not taken, that being written too.
  void Update(size_t messages);

 private:
  const StreamMetrics metrics_;
  std::optional<absl::Time> counted_until_;  // nothing: the client keeps up
};

}  // namespace rootstock
