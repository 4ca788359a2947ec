// How long to wait before a failed transfer is tried again.
#pragma once

#include <cstdint>
#include <random>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace rootstock {

// Exponential with full jitter: attempt n (0-based) waits between 0 and first · 2^n. *One caller.*
class RetryPolicy {
 public:
  RetryPolicy(int max_retries, absl::Duration first, uint64_t seed)
      : left_(max_retries), bound_(first), random_(seed) {}

  // Nothing more to try: a negative duration.
  absl::Duration NextWait();

 private:
  int left_;
  absl::Duration bound_;
  std::mt19937_64 random_;
};

// Whether another attempt may end otherwise.
bool IsTransient(const absl::Status& status);

}  // namespace rootstock
