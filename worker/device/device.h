// Memory of the device that a tp_rank computes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace rootstock {

// Owns device memory that starts zeroed and lies on 4096 bytes. Movable. Not thread-safe.
class DeviceBuffer {
 public:
  // Gives the memory back; `bytes` as allocated.
  using Free = void (*)(void* data, size_t bytes);

  DeviceBuffer() = default;
  DeviceBuffer(void* data, size_t bytes, Free free) : data_(data), bytes_(bytes), free_(free) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer() { Reset(); }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void Reset();

  void* data_ = nullptr;
  size_t bytes_ = 0;
  Free free_ = nullptr;
};

class CopyLane;

// Of a span of work on a device, in seconds of its clock.
struct DeviceSpan {
  double gap = 0;   // from the end of the span before to its begin
  double busy = 0;  // from its begin to its end
};

// Where weights, pages and workspaces live. Implementations: CpuDevice, CudaDevice. *Step thread
// only.*
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "cpu", or a GPU's UUID
  virtual std::string kind() const = 0;  // "cpu", or the product's name
  // Whether the host may read and write the memory through its pointer.
  virtual bool host_addressable() const = 0;
  // RESOURCE_EXHAUSTED/no_memory with `purpose` and the bytes.
  virtual absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, const std::string& purpose) = 0;

  // Of what Allocate takes from, free now; nothing where the host's memory is meant.
  virtual absl::StatusOr<uint64_t> FreeBytes() = 0;

  // Where the host writes what WriteBack brings to [to, to + bytes) of the device: `to` itself
  // where the host addresses it. Valid until the next call.
  virtual absl::StatusOr<std::byte*> Stage(std::byte* to, size_t bytes) = 0;
  // Of the last Stage; in order with the step's work.
  virtual absl::Status WriteBack() = 0;
  // out = [from, from + out.size()) once all work before is done.
  virtual absl::Status Read(const void* from, std::span<std::byte> out) = 0;
  // A mark behind all that was enqueued so far; Wait returns once that has run, with the first
  // error of the device. The eight latest marks can be waited for.
  virtual uint64_t Mark() = 0;
  virtual absl::Status Wait(uint64_t mark) = 0;
  // Of the span that ends with the mark, one of the eight latest, after Wait(mark). Nothing where
  // operators began none, of the first, and on a device that does not tell.
  virtual std::optional<DeviceSpan> SpanOf(uint64_t) { return std::nullopt; }
  // Calls `done`, on any thread, when all that was enqueued so far has run or the device has
  // failed. `done` calls no Device.
  virtual void NotifyWhenDone(std::function<void()> done) = 0;
  // For copies beside the steps.
  virtual absl::StatusOr<std::unique_ptr<CopyLane>> MakeCopyLane() = 0;
};

}  // namespace rootstock
