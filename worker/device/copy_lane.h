// Copies to the device that run beside its steps.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/device.h"

namespace rootstock {

// Of contiguous bytes: device [to, to + bytes) = host [from, from + bytes).
struct CopyRun {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};

// One order of copies, on a stream of its own where the device has streams. Memory that it copies
// from stays as it is until the copies have run. Made by Device::MakeCopyLane, which it must not
// outlive. Implementations: CpuCopyLane, CudaCopyLane. *One thread, where nothing else is said.*
class CopyLane {
 public:
  // A place in the order of copies.
  using Mark = std::shared_ptr<const void>;

  virtual ~CopyLane() = default;
  // Memory of the host that copies run from at full speed: pinned for a GPU. Not zeroed.
  // RESOURCE_EXHAUSTED/no_memory. *Thread-safe.*
  virtual absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes, const std::string& purpose) = 0;
  // Of the device, for copies of this lane. Not zeroed. RESOURCE_EXHAUSTED/no_memory.
  // *Thread-safe.*
  virtual absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, const std::string& purpose) = 0;
  // Enqueues them. *Thread-safe*, as MakeMark is.
  virtual absl::Status Copy(std::span<const CopyRun> runs) = 0;
  // Behind all copies so far.
  virtual absl::StatusOr<Mark> MakeMark() = 0;
  // Calls `done`, on any thread, when all copies so far have run, or failed. `done` calls nothing
  // of the device or the lane.
  virtual void NotifyWhenDone(std::function<void(absl::Status)> done) = 0;
  // What the device's steps enqueue from now on runs behind the mark; waits for nothing, and costs
  // the device nothing where the mark has passed. *Step thread only.*
  virtual absl::Status FollowInStep(const Mark& mark) = 0;
  // How long steps stood still behind marks, of those that have run since the last call. *Step
  // thread only.*
  virtual double TakeStallSeconds() = 0;
};

}  // namespace rootstock
