// METRICS.md, coordinator: uploads.
#pragma once

#include "absl/status/status.h"
#include "common/metrics/metrics.h"

namespace rootstock {

// Thread-safe.
class UploadMetrics {
 public:
  explicit UploadMetrics(Metrics& metrics);
  // How a call that begins, goes on with or finishes an upload ended. Counted are registrations
  // (`is_finish` and OK), refusals of what was sent, and our own failures; not what is only to be
  // sent again or further.
  void Ended(const absl::Status& status, bool is_finish) const;

 private:
  Counter ok_, rejected_, error_;
};

}  // namespace rootstock
