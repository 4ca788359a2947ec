// METRICS.md, coordinator: registry.
#pragma once

#include <array>
#include <optional>

#include "common/base/status.h"
#include "common/metrics/metrics.h"
#include "coordinator/adapters/adapter.h"

namespace rootstock {

enum class AliasFlip { kOk, kRefused, kError };

// adapters_resident and adapter_resident_bytes of the object store, where there is one.
struct ObjectTierGauges {
  Gauge adapters, bytes;
};

// Thread-safe.
class RegistryMetrics {
 public:
  explicit RegistryMetrics(Metrics& metrics, std::optional<ObjectTierGauges> object = {});
  // Contents that came to the object store, or left it.
  void Stored(int by, uint64_t bytes) const {
    if (!object_) return;
    object_->adapters.Add(by);
    object_->bytes.Add(by * static_cast<double>(bytes));
  }
  void Moved(AdapterState state, int by) const { adapters_[static_cast<size_t>(state)].Add(by); }
  // Reasons outside adapter_rejects_total's list are not counted.
  void Rejected(Reason reason) const;
  void Committed(double seconds) const { fsync_.Observe(seconds); }
  void IsAt(uint64_t revision, uint64_t log_bytes) const {
    revision_.Set(static_cast<double>(revision));
    log_bytes_.Set(static_cast<double>(log_bytes));
  }
  // Changes of what an alias stands for.
  void Flipped(AliasFlip result) const { flips_[static_cast<size_t>(result)].Add(); }
  void Pinned(int by) const { pinned_.Add(by); }  // versions that any group keeps
  void Leaked(size_t handles) const { leaks_.Add(static_cast<double>(handles)); }

 private:
  std::array<Gauge, 4> adapters_;
  Family<Counter> rejects_;
  Histogram fsync_;
  Gauge revision_, log_bytes_, pinned_;
  std::array<Counter, 3> flips_;
  Counter leaks_;
  std::optional<ObjectTierGauges> object_;
};

}  // namespace rootstock
