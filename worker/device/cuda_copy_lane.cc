#include "worker/device/cuda_copy_lane.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/device/cuda_device.h"

namespace rootstock {
namespace {

constexpr int kReservedMarks = 256;

void FreePinned(void* data, size_t) { cudaFreeHost(data); }
// To the pool, without waiting: the owner frees only what no running step or copy names.
void FreeTables(void* data, size_t) { cudaFreeAsync(data, nullptr); }

// That it has not passed yet is no error of a step's.
bool Passed(cudaEvent_t event) {
  if (cudaEventQuery(event) == cudaSuccess) return true;
  if (cudaPeekAtLastError() == cudaErrorNotReady) cudaGetLastError();
  return false;
}

using Done = std::function<void(absl::Status)>;

void CUDART_CB TellAndDelete(cudaStream_t, cudaError_t error, void* done) {
  const std::unique_ptr<Done> owned(static_cast<Done*>(done));
  (*owned)(CudaStatus(error, "copy to the device"));
}

}  // namespace

CudaEventPool::~CudaEventPool() {
  for (const cudaEvent_t event : free_) cudaEventDestroy(event);
}

absl::Status CudaEventPool::Reserve(int count) {
  for (int i = 0; i < count; ++i) {
    cudaEvent_t event = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, flags_), "event"));
    GiveBack(event);
  }
  return absl::OkStatus();
}

absl::StatusOr<cudaEvent_t> CudaEventPool::Take() {
  cudaEvent_t event = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      event = free_.back();
      free_.pop_back();
    }
  }
  if (event == nullptr) {
    RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, flags_), "event"));
  }
  return event;
}

void CudaEventPool::GiveBack(cudaEvent_t event) {
  std::lock_guard lock(mutex_);
  free_.push_back(event);
}

absl::StatusOr<std::unique_ptr<CudaCopyLane>> CudaCopyLane::Create(int device,
                                                                   cudaStream_t step_stream) {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device), "copy stream"));
  std::unique_ptr<CudaCopyLane> lane(new CudaCopyLane(device, step_stream));
  RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&lane->stream_, cudaStreamNonBlocking), "copy stream"));
  RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&lane->notify_stream_, cudaStreamNonBlocking), "copy stream"));
  RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&lane->notify_event_, cudaEventDisableTiming), "event"));
  RETURN_IF_ERROR(lane->marks_->Reserve(kReservedMarks));
  RETURN_IF_ERROR(lane->timers_.Reserve(kReservedMarks));
  return lane;
}

CudaCopyLane::~CudaCopyLane() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  if (notify_stream_ != nullptr) cudaStreamSynchronize(notify_stream_);
  for (const auto& [before, behind] : stalls_) {
    timers_.GiveBack(before);
    timers_.GiveBack(behind);
  }
  if (notify_event_ != nullptr) cudaEventDestroy(notify_event_);
  if (notify_stream_ != nullptr) cudaStreamDestroy(notify_stream_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::StatusOr<DeviceBuffer> CudaCopyLane::AllocateHost(size_t bytes, const std::string& purpose) {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_), purpose));
  const size_t size = std::max<size_t>(bytes, 1);
  void* data = nullptr;
  if (const cudaError_t error = cudaHostAlloc(&data, size, cudaHostAllocDefault);
      error != cudaSuccess) {
    cudaGetLastError();
    return MakeError(absl::StatusCode::kResourceExhausted, Reason::kNoMemory, purpose,
                     absl::StrCat(size),
                     absl::StrCat("bytes of pinned host memory are not to be had (",
                                  cudaGetErrorName(error), ")"));
  }
  return DeviceBuffer(data, size, &FreePinned);
}

absl::StatusOr<DeviceBuffer> CudaCopyLane::Allocate(size_t bytes, const std::string& purpose) {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_), purpose));
  const size_t size = std::max<size_t>(bytes, 256);
  void* data = nullptr;
  if (const cudaError_t error = cudaMallocAsync(&data, size, stream_); error != cudaSuccess) {
    return NoDeviceMemory(size, purpose, error);
  }
  return DeviceBuffer(data, size, &FreeTables);
}

absl::Status CudaCopyLane::Copy(std::span<const CopyRun> runs) {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_), "copy to the device"));
  for (const CopyRun& run : runs) {
    RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(run.to, run.from, run.bytes, cudaMemcpyHostToDevice, stream_),
                   "copy to the device"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CopyLane::Mark> CudaCopyLane::MakeMark() {
  ASSIGN_OR_RETURN(const cudaEvent_t event, marks_->Take());
  Mark mark(event, [pool = marks_](const void* held) {
    pool->GiveBack(static_cast<cudaEvent_t>(const_cast<void*>(held)));
  });
  RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event, stream_), "copy to the device"));
  return mark;
}

// A callback on the copy stream itself would hold up the copies behind it.
void CudaCopyLane::NotifyWhenDone(std::function<void(absl::Status)> done) {
  auto owned = std::make_unique<Done>(std::move(done));
  cudaError_t error = cudaSetDevice(device_);
  if (error == cudaSuccess) error = cudaEventRecord(notify_event_, stream_);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(notify_stream_, notify_event_, 0);
  if (error == cudaSuccess) {
    error = cudaStreamAddCallback(notify_stream_, &TellAndDelete, owned.get(), 0);
  }
  if (error == cudaSuccess) {
    owned.release();
    return;
  }
  // Copies may still run: whoever hears frees what they read and gives away what they write.
  cudaStreamSynchronize(stream_);
  (*owned)(CudaStatus(error, "copy to the device"));
}

absl::Status CudaCopyLane::FollowInStep(const Mark& mark) {
  const auto event = static_cast<cudaEvent_t>(const_cast<void*>(mark.get()));
  if (Passed(event)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const cudaEvent_t before, timers_.Take());
  ASSIGN_OR_RETURN(const cudaEvent_t behind, timers_.Take());
  stalls_.emplace_back(before, behind);
  RETURN_IF_ERROR(CudaStatus(cudaEventRecord(before, step_stream_), "step behind a copy"));
  RETURN_IF_ERROR(CudaStatus(cudaStreamWaitEvent(step_stream_, event, 0), "step behind a copy"));
  return CudaStatus(cudaEventRecord(behind, step_stream_), "step behind a copy");
}

double CudaCopyLane::TakeStallSeconds() {
  double seconds = 0;
  for (; !stalls_.empty(); stalls_.pop_front()) {
    const auto [before, behind] = stalls_.front();
    if (!Passed(behind)) break;
    float ms = 0;
    cudaEventElapsedTime(&ms, before, behind);
    seconds += 1e-3 * ms;
    timers_.GiveBack(before);
    timers_.GiveBack(behind);
  }
  return seconds;
}

}  // namespace rootstock
