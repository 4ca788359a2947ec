// Adapters on their way to this tp_rank's host cache and pages, beside the steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "worker/lora/device_adapter.h"
#include "worker/memory/host_cache.h"

namespace rootstock {

// Since the start.
struct LoadStats {
  uint64_t copied_bytes = 0;  // to the device
  double stall_seconds = 0;   // that steps stood still behind copies
};

// Work that was started ends on threads of the loader's own; what it fills in is taken by the step
// thread. Implementations: TierLoader, and the unit tests' that ends when told. *Step thread only.*
class AdapterLoader {
 public:
  virtual ~AdapterLoader() = default;
  // Calls `done`, on any thread, after each that ends; from now on.
  virtual void NotifyWhenDone(std::function<void()> done) = 0;

  // Brings an image of content that is on this node to the host cache, if there is room.
  virtual void Stage(CommandId id, const PrefetchAdapter& prefetch) = 0;
  // Writes this tp_rank's rows into the pages, which nothing else names until the load has ended.
  virtual void Load(CommandId id, const LoadAdapter& load) = 0;
  // Nothing while it runs. An error of a load leaves nothing behind but bytes in its pages.
  virtual std::optional<absl::Status> OutcomeOf(CommandId id) = 0;
  // Of a Stage: whether it found the image in the cache.
  virtual bool WasInHost(CommandId id) = 0;

  // Waits until it is known what the load copies where: its adapter, for steps that call Follow; it
  // must stay until the load has ended, which OutcomeOf tells.
  virtual absl::StatusOr<std::unique_ptr<DeviceAdapter>> TakeEarly(CommandId id) = 0;
  // What a step enqueues from now on finds the rows of layers up to `layer` written. After
  // TakeEarly, until Forget. An error breaks the step: the device refuses copies.
  virtual absl::Status Follow(CommandId id, int layer) = 0;
  // Of a load that has ended well and was not taken early.
  virtual std::unique_ptr<DeviceAdapter> Take(CommandId id) = 0;
  // Of one that has ended: outcome and what was not taken go.
  virtual void Forget(CommandId id) = 0;
  // Drops what has not begun, waits for the rest, and forgets all.
  virtual void ForgetAll() = 0;

  // Of this tp_rank.
  virtual HostCache& host() = 0;
  virtual LoadStats stats() = 0;
};

}  // namespace rootstock
