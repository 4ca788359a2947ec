// The host's processor as a device.
#pragma once

#include <string>

#include "worker/device/device.h"

namespace rootstock {

// Cores this process may run on (its affinity mask), shared by `ranks_on_host` equal ranks; ranks
// that were bound to cores of their own pass 1. At least 1.
int CpuThreads(int ranks_on_host);

// Zeroed anonymous memory, in huge pages where the kernel grants them. *Step thread only.*
class CpuDevice : public Device {
 public:
  // threads: what every parallel loop of this rank uses, see CpuThreads.
  explicit CpuDevice(int threads) : threads_(threads) {}
  std::string name() const override { return "cpu"; }
  std::string kind() const override { return "cpu"; }
  bool host_addressable() const override { return true; }
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, const std::string& purpose) override;
  absl::StatusOr<uint64_t> FreeBytes() override { return 0; }
  absl::StatusOr<std::byte*> Stage(std::byte* to, size_t bytes) override { return to; }
  absl::Status WriteBack() override { return absl::OkStatus(); }
  absl::Status Read(const void* from, std::span<std::byte> out) override;
  uint64_t Mark() override { return 0; }
  absl::Status Wait(uint64_t mark) override { return absl::OkStatus(); }
  void NotifyWhenDone(std::function<void()> done) override { done(); }
  absl::StatusOr<std::unique_ptr<CopyLane>> MakeCopyLane() override;
  int threads() const { return threads_; }

 private:
  int threads_;
};

}  // namespace rootstock
