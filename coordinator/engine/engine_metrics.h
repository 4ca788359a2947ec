// METRICS.md, coordinator: requests, pages and queue, groups.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"

namespace rootstock {

// Series of one group.
struct GroupMetrics {
  Gauge pages_kv, pages_adapter, pages_free;
  Gauge residents, resident_bytes;  // tier device
  Gauge epoch;
};

// Where an adapter was when its request came: adapter_lookup_total.
enum class AdapterLookup { kDeviceHit, kDiskHit, kFetch, kUnknown };

// Thread-safe: handles only.
class EngineMetrics {
 public:
  explicit EngineMetrics(Metrics& metrics);

  void Ended(const absl::Status& status) const;
  void Shed(const char* reason) const { shed_.At("default", reason).Add(); }
  void FirstToken(absl::Duration since_arrival, bool adapter, bool cold) const;
  void Queued(absl::Duration wait, bool cold) const;
  void Looked(AdapterLookup found) const;
  void Loaded(bool from_disk, const absl::Status& outcome, absl::Duration took) const;
  // A cancelled request; `queued`, `prefill` or `decode` is where it was.
  void Disconnected(const char* phase) const { disconnects_.At(phase).Add(); }
  void Requeued(bool drained, size_t requests) const;
  void Reformed(const std::string& group, bool drained, absl::Duration took) const;
  // Of one that is not attached no page is known.
  void GroupIs(const std::string& group, const std::string& state) const;
  GroupMetrics ForGroup(const std::string& group) const;

  Gauge queue_requests, queue_tokens, running_requests;
  Histogram tpot, itl, e2e, cancel_latency, prompt_tokens, output_tokens;
  Counter stream_backpressure_seconds;
  Counter prompt_tokens_computed, prompt_tokens_cached, output_tokens_total;
  Counter preemptions, replays, replayed_tokens, evictions, evictions_retire;
  Counter kv_pages_pressure, adapter_pages_pressure, adapter_pages_unload;

 private:
  void MakeRequests(Metrics& m);
  void MakeTokens(Metrics& m);
  void MakeLosses(Metrics& m);
  void MakeAdapters(Metrics& m);
  void MakeGroups(Metrics& m);

  Family<Counter> requests_, shed_, loads_, lookups_, disconnects_, retries_, reforms_;
  Family<Histogram> ttft_, load_seconds_;
  Histogram reform_seconds_, queue_wait_, wait_for_load_, wait_for_pages_;
  Family<Gauge> pages_, residents_, resident_bytes_, group_state_, group_epoch_;
};

}  // namespace rootstock
