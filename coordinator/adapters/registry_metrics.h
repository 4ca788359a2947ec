// METRICS.md, coordinator: registry.
#pragma once

#include <array>

#include "common/base/status.h"
#include "common/metrics/metrics.h"
#include "coordinator/adapters/adapter.h"

namespace rootstock {

// Thread-safe.
class RegistryMetrics {
 public:
  explicit RegistryMetrics(Metrics& metrics);
  void Moved(AdapterState state, int by) const { adapters_[static_cast<size_t>(state)].Add(by); }
  // Reasons outside adapter_rejects_total's list are not counted.
  void Rejected(Reason reason) const;
  void Committed(double seconds) const { fsync_.Observe(seconds); }
  void IsAt(uint64_t revision) const { revision_.Set(static_cast<double>(revision)); }

 private:
  std::array<Gauge, 4> adapters_;
  Family<Counter> rejects_;
  Histogram fsync_;
  Gauge revision_;
};

}  // namespace rootstock
