#include "common/objects/retry.h"

namespace rootstock {

absl::Duration RetryPolicy::NextWait() {
  if (left_-- <= 0) return -absl::InfiniteDuration();
  const absl::Duration wait = bound_ * std::uniform_real_distribution<double>(0, 1)(random_);
  bound_ *= 2;
  return wait;
}

bool IsTransient(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace rootstock
