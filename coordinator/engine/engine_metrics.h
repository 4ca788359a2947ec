// METRICS.md, coordinator: requests, pages and queue, groups.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "common/plan/plan.h"

namespace rootstock {

enum class AdapterHeat;

// Series of one group.
struct GroupMetrics {
  struct OnTier {
    Gauge adapters, bytes;
  };
  // Bytes on each tp_rank for the device, on all nodes for host and disk.
  void On(Tier tier, uint64_t adapters, double bytes) const;

  Gauge pages_kv, pages_adapter, pages_free;
  OnTier device, host, disk;
  Gauge epoch;
};

// Where an adapter was when its request came: adapter_lookup_total.
enum class AdapterLookup { kDeviceHit, kHostHit, kDiskHit, kFetch, kObjectFetch, kUnknown };

// Thread-safe: handles only.
class EngineMetrics {
 public:
  explicit EngineMetrics(Metrics& metrics);

  void Ended(const absl::Status& status) const;
  void Shed(const char* reason) const { shed_.At("default", reason).Add(); }
  void FirstToken(absl::Duration since_arrival, AdapterHeat heat) const;
  // load_wait: the part of it in which its adapter was not usable.
  void Queued(absl::Duration wait, absl::Duration load_wait) const;
  void Looked(AdapterLookup found) const;
  void Loaded(FetchSource source, const absl::Status& outcome, absl::Duration took) const;
  // `pressure`: for want of room; else it was to go.
  void Evicted(Tier tier, bool pressure, uint32_t adapters) const;
  // A cancelled request; `queued`, `prefill` or `decode` is where it was.
  void Disconnected(const char* phase) const { disconnects_.At(phase).Add(); }
  void Requeued(bool drained, size_t requests) const;
  void Reformed(const std::string& group, bool drained, absl::Duration took) const;
  // Of one that is not attached no page is known.
  void GroupIs(const std::string& group, const std::string& state) const;
  GroupMetrics ForGroup(const std::string& group) const;
  // Its series are no more; nothing of it may use them any longer.
  void Forget(const std::string& group) const;

  GroupMetrics::OnTier object;  // the coordinator's object store, which is no group's
  Gauge queue_requests, queue_tokens, running_requests;
  Histogram tpot, itl, e2e, cancel_latency, prompt_tokens, output_tokens;
  Counter stream_backpressure_seconds;
  Counter prompt_tokens_computed, prompt_tokens_cached, output_tokens_total;
  Counter preemptions, replays, replayed_tokens;
  Counter kv_pages_pressure, adapter_pages_pressure, adapter_pages_unload, adapter_pages_retire;

 private:
  void MakeRequests(Metrics& m);
  void MakeTokens(Metrics& m);
  void MakeLosses(Metrics& m);
  void MakeAdapters(Metrics& m);
  void MakeGroups(Metrics& m);

  Family<Counter> requests_, shed_, loads_, evictions_, lookups_, disconnects_, retries_, reforms_;
  Family<Histogram> ttft_, load_seconds_;
  Histogram reform_seconds_, queue_wait_, wait_for_load_, wait_for_pages_;
  Family<Gauge> pages_, residents_, resident_bytes_, group_state_, group_epoch_;
};

}  // namespace rootstock
