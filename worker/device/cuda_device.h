// A GPU as a device.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "worker/device/device.h"

namespace rootstock {

// `what` failed with `error`: RESOURCE_EXHAUSTED/no_memory or INTERNAL; OK for cudaSuccess.
absl::Status CudaStatus(cudaError_t error, const std::string& what);
// RESOURCE_EXHAUSTED/no_memory: purpose=bytes, and what the current GPU has free.
absl::Status NoDeviceMemory(size_t bytes, const std::string& purpose, cudaError_t error);

// One stream for a tp_rank's steps and what they upload; loads have a CudaCopyLane. *Step thread
// only.*
class CudaDevice : public Device {
 public:
  // FAILED_PRECONDITION when there is no GPU `index`, or the driver is too old for this build, with
  // both versions.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(int index);
  ~CudaDevice() override;

  std::string name() const override { return name_; }
  std::string kind() const override { return kind_; }
  bool host_addressable() const override { return false; }
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, const std::string& purpose) override;
  absl::StatusOr<uint64_t> FreeBytes() override;
  absl::StatusOr<std::byte*> Stage(std::byte* to, size_t bytes) override;
  absl::Status WriteBack() override;
  absl::Status Read(const void* from, std::span<std::byte> out) override;
  uint64_t Mark() override;
  absl::Status Wait(uint64_t mark) override;
  std::optional<DeviceSpan> SpanOf(uint64_t mark) override;
  void NotifyWhenDone(std::function<void()> done) override;
  absl::StatusOr<std::unique_ptr<CopyLane>> MakeCopyLane() override;

  cudaStream_t stream() const { return stream_; }
  // What is enqueued from now on, up to the next Mark, is a span. Nothing while one goes on.
  void BeginSpan();
  static absl::StatusOr<uint64_t> FreeBytesOf(int index);
  // Of the host, without touching any.
  static int Count();

 private:
  // Pinned memory for one Stage; two of them, so that one is filled while the other is copied.
  // Given back by FreeBytes.
  struct Staging {
    void* data = nullptr;
    size_t bytes = 0;
    cudaEvent_t copied = nullptr;
  };
  struct MarkedSpan {
    bool begun = false;
    std::optional<uint64_t> before;  // mark of the span before
  };

  CudaDevice() = default;

  int index_ = 0;
  std::string name_;
  std::string kind_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t notify_stream_ = nullptr;
  cudaEvent_t notify_event_ = nullptr;
  std::array<cudaEvent_t, 8> marks_ = {}, begins_ = {};
  std::array<MarkedSpan, 8> spans_ = {};
  uint64_t num_marks_ = 0;
  bool begun_ = false;                 // a span that no mark has ended
  std::optional<uint64_t> last_span_;  // its mark
  Staging staging_[2];
  int next_staging_ = 0;
  std::byte* staged_to_ = nullptr;
  size_t staged_bytes_ = 0;
};

}  // namespace rootstock
