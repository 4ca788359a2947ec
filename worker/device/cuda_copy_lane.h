// Copies to a GPU on a stream of their own.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "worker/device/copy_lane.h"

namespace rootstock {

// Events that are used over and over: making one takes a lock of the driver's. *Thread-safe.*
class CudaEventPool {
 public:
  explicit CudaEventPool(unsigned flags) : flags_(flags) {}
  ~CudaEventPool();
  // `count` events exist from here on.
  absl::Status Reserve(int count);
  absl::StatusOr<cudaEvent_t> Take();
  void GiveBack(cudaEvent_t event);

 private:
  const unsigned flags_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

// A copy stream of lowest priority beside the device's step stream. Nothing that it does waits for
// the device. *One thread, but what CopyLane says.*
class CudaCopyLane : public CopyLane {
 public:
  // step_stream: of the device, borrowed.
  static absl::StatusOr<std::unique_ptr<CudaCopyLane>> Create(int device, cudaStream_t step_stream);
  ~CudaCopyLane() override;
  absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes, const std::string& purpose) override;
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, const std::string& purpose) override;
  absl::Status Copy(std::span<const CopyRun> runs) override;
  absl::StatusOr<Mark> MakeMark() override;
  void NotifyWhenDone(std::function<void(absl::Status)> done) override;
  absl::Status FollowInStep(const Mark& mark) override;
  double TakeStallSeconds() override;

 private:
  CudaCopyLane(int device, cudaStream_t step_stream)
      : device_(device),
        step_stream_(step_stream),
        marks_(std::make_shared<CudaEventPool>(cudaEventDisableTiming)),
        timers_(cudaEventDefault) {}

  const int device_;
  const cudaStream_t step_stream_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t notify_stream_ = nullptr;
  cudaEvent_t notify_event_ = nullptr;
  const std::shared_ptr<CudaEventPool> marks_;  // shared by the marks that are held
  CudaEventPool timers_;
  std::deque<std::pair<cudaEvent_t, cudaEvent_t>> stalls_;  // before and behind a mark's wait
};

}  // namespace rootstock
