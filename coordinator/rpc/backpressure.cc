#include "coordinator/rpc/backpressure.h"

namespace rootstock {

// Counted as it passes: a client that never reads shows at its next token, not at its end.
void Backpressure::Update(size_t messages) {
  const bool waiting = counted_until_.has_value();
  if (!waiting && messages < 2) return;
  const absl::Time now = metrics_.clock();
  if (waiting) metrics_.backpressure_seconds.Add(absl::ToDoubleSeconds(now - *counted_until_));
  counted_until_ = now;
  if (messages == 0) counted_until_.reset();
}

}  // namespace rootstock
