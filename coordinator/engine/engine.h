// The coordinator's heart as rpc and http see it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/engine/queue_bound.h"
#include "coordinator/request/generate.h"
#include "coordinator/scheduler/lora_sharding.h"

namespace rootstock {

struct StepSummary {
  uint32_t rows = 0;
  uint32_t tokens = 0;
  uint32_t distinct_adapters = 0;
  uint64_t duration_us = 0;
};

struct GroupStatus {
  GroupInfo info;
  std::string state;  // forming, loading, ready, draining, drained, broken
  Epoch epoch;
  PageGeometry geometry;
  DType compute_dtype = DType::kF32;
  uint32_t pages_free = 0, pages_kv = 0, pages_adapter = 0;
  std::vector<ResidentAdapter> adapters;
  std::vector<CachedAdapter> cached;  // on its nodes' hosts and disks
  uint64_t steps = 0;
  StepSummary last_step, widest_step;
};

struct EngineStatus {
  bool draining = false;
  uint32_t queued = 0;
  uint32_t running = 0;
  LoraShardingPolicy lora_sharding = LoraShardingPolicy::kReplicated;
  std::vector<GroupStatus> groups;
};

// Held on the device for ever, once it has come there.
struct AdapterPin {
  Digest digest;
  std::string group;  // empty: every group
};

using UnloadedBytes = TierBytes;

// *Thread-safe.*
class Engine {
 public:
  virtual ~Engine() = default;
  // Checks, resolves the model name to a digest once, tokenises and queues. On error nothing was
  // sent to `sink`; on success OnAccepted was, and the rest follows on frontend threads.
  virtual absl::StatusOr<RequestNumber> Generate(GenerateRequest request,
                                                 std::shared_ptr<GenerateSink> sink) = 0;
  // A place in the queue for a request whose model is still to be found: its waiting counts from
  // here. Or what Generate would refuse before it looks the model up, counted by nobody: a draining
  // engine, bad fields, a deadline that has passed, a full queue. Never blocks.
  virtual absl::StatusOr<std::shared_ptr<QueuePlace>> Enter(const GenerateRequest& request) = 0;
  // Counts a request that ended before Generate could be called.
  virtual void Refused(const absl::Status& status) = 0;
  // Pages are free within two steps; OnDone(CANCELLED) follows, or DEADLINE_EXCEEDED when that is
  // what the client gave up for. Unknown numbers are ignored.
  virtual void Cancel(RequestNumber request) = 0;
  virtual EngineStatus Status() const = 0;
  // Refuses new requests; returns when the running ones have ended or at the deadline:
  // DEADLINE_EXCEEDED, and those left end with UNAVAILABLE / draining.
  virtual absl::Status Drain(absl::Time deadline) = 0;
  virtual absl::Status DrainGroup(const std::string& group) = 0;
  // Waits until the requests that were accepted before have ended, then frees the adapter on every
  // tier of every group, and calls `done` once, on any thread, with what that freed; also when the
  // engine ends before. Later requests for it wait, and fetch it again. A pinned one stays.
  virtual void Unload(const Digest& digest, std::function<void(const UnloadedBytes&)> done) = 0;
  // Whether each attached group can hold all of these (all that there are to be) and keep its
  // floors. FAILED_PRECONDITION/too_large with the arithmetic; the reason why a group can't hold
  // one.
  virtual absl::Status CheckPins(const std::vector<AdapterPin>& pins) const = 0;
  // These are all the pins from now on. A group loads and keeps those it can (CheckPins), in this
  // order, from when the requests it has fit beside them.
  virtual void SetPins(std::vector<AdapterPin> pins) = 0;
};

}  // namespace rootstock
