// Copies within the host's memory.
#pragma once

#include <string>

#include "worker/device/copy_lane.h"

namespace rootstock {

// Zeroed anonymous memory, in huge pages where the kernel grants them. *Thread-safe.*
absl::StatusOr<DeviceBuffer> AllocateHostMemory(size_t bytes, const std::string& purpose);

// Copies have run when Copy returns, so a step that has the mark follows it. *Thread-safe.*
class CpuCopyLane : public CopyLane {
 public:
  absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes, const std::string& purpose) override {
    return AllocateHostMemory(bytes, purpose);
  }
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, const std::string& purpose) override {
    return AllocateHostMemory(bytes, purpose);
  }
  absl::Status Copy(std::span<const CopyRun> runs) override;
  absl::StatusOr<Mark> MakeMark() override { return Mark(); }
  void NotifyWhenDone(std::function<void(absl::Status)> done) override { done(absl::OkStatus()); }
  absl::Status FollowInStep(const Mark& mark) override { return absl::OkStatus(); }
  double TakeStallSeconds() override { return 0; }
};

}  // namespace rootstock
