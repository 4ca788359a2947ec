#include "worker/device/cuda_device.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/device/architectures.h"
#include "worker/device/cuda_copy_lane.h"

namespace rootstock {
namespace {

constexpr size_t kSmallAllocation = size_t{1} << 20;

void FreeLarge(void* data, size_t) { cudaFree(data); }
// Returns to the pool without waiting: the owner frees only what no running step names.
void FreeSmall(void* data, size_t) { cudaFreeAsync(data, nullptr); }

void CUDART_CB CallAndDelete(cudaStream_t, cudaError_t, void* done) {
  const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(done));
  (*owned)();
}

absl::Status NoDevice(int index, const std::string& why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInvalidArgument, "device",
                   absl::StrCat("cuda:", index), why);
}

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// Makes the GPU the thread's current one.
absl::Status Select(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return NoDevice(index, "this host has no CUDA driver");
  if (driver / 1000 < runtime / 1000) {
    return NoDevice(index, absl::StrCat("the driver is for CUDA ", VersionText(driver),
                                        ", this build needs ", VersionText(runtime)));
  }
  if (error != cudaSuccess) return NoDevice(index, cudaGetErrorString(error));
  if (index >= count) return NoDevice(index, absl::StrCat("there are ", count, " GPUs"));
  if (const cudaError_t set = cudaSetDevice(index); set != cudaSuccess) {
    return NoDevice(index, cudaGetErrorString(set));
  }
  return absl::OkStatus();
}

std::string UuidText(const cudaUUID_t& uuid) {
  std::string out = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    absl::StrAppend(&out, absl::Hex(static_cast<unsigned char>(uuid.bytes[i]), absl::kZeroPad2));
  }
  return out;
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const bool memory = error == cudaErrorMemoryAllocation;
  if (memory) cudaGetLastError();  // said here, not once more by the next step
  return MakeError(memory ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
                   memory ? Reason::kNoMemory : Reason::kInternal, what, cudaGetErrorName(error),
                   cudaGetErrorString(error));
}

absl::Status NoDeviceMemory(size_t bytes, const std::string& purpose, cudaError_t error) {
  cudaGetLastError();  // said here, not once more by the next step
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  return MakeError(absl::StatusCode::kResourceExhausted, Reason::kNoMemory, purpose,
                   absl::StrCat(bytes),
                   absl::StrCat("bytes of device memory are not to be had: ", free, " of ", total,
                                " are free (", cudaGetErrorName(error), ")"));
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(int index) {
  RETURN_IF_ERROR(Select(index));
  std::unique_ptr<CudaDevice> device(new CudaDevice);
  device->index_ = index;
  cudaDeviceProp properties;
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, index), "device"));
  RETURN_IF_ERROR(
      CheckArchitectures(ROOTSTOCK_CUDA_ARCHITECTURES, properties.major, properties.minor));
  device->name_ = UuidText(properties.uuid);
  device->kind_ = properties.name;
  RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking), "stream"));
  RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&device->notify_stream_, cudaStreamNonBlocking), "stream"));
  RETURN_IF_ERROR(CudaStatus(
      cudaEventCreateWithFlags(&device->notify_event_, cudaEventDisableTiming), "event"));
  for (auto* events : {&device->marks_, &device->begins_}) {
    for (cudaEvent_t& event : *events) {
      RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&event), "event"));  // with the time
    }
  }
  // Small allocations come and go with adapters: what was freed stays with the pool.
  cudaMemPool_t pool = nullptr;
  uint64_t keep = UINT64_MAX;
  RETURN_IF_ERROR(CudaStatus(cudaDeviceGetDefaultMemPool(&pool, index), "memory pool"));
  RETURN_IF_ERROR(CudaStatus(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
                             "memory pool"));
  for (Staging& staging : device->staging_) {
    RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&staging.copied, cudaEventDisableTiming), "event"));
  }
  return device;
}

CudaDevice::~CudaDevice() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  for (Staging& staging : staging_) {
    if (staging.data != nullptr) cudaFreeHost(staging.data);
    if (staging.copied != nullptr) cudaEventDestroy(staging.copied);
  }
  for (const auto* events : {&marks_, &begins_}) {
    for (const cudaEvent_t event : *events) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  if (notify_event_ != nullptr) cudaEventDestroy(notify_event_);
  if (notify_stream_ != nullptr) cudaStreamDestroy(notify_stream_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

int CudaDevice::Count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

absl::StatusOr<uint64_t> CudaDevice::FreeBytesOf(int index) {
  RETURN_IF_ERROR(Select(index));
  size_t free = 0, total = 0;
  RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "device memory"));
  return free;
}

absl::StatusOr<uint64_t> CudaDevice::FreeBytes() {
  size_t free = 0, total = 0;
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "device memory"));
  // Asked when the weights are there: the host needs no copy of their last pieces any more.
  for (Staging& staging : staging_) {
    if (staging.data != nullptr) cudaFreeHost(staging.data);
    staging.data = nullptr;
    staging.bytes = 0;
  }
  RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "device memory"));
  return free;
}

absl::StatusOr<DeviceBuffer> CudaDevice::Allocate(size_t bytes, const std::string& purpose) {
  const size_t size = std::max<size_t>(bytes, 256);
  const bool small = size < kSmallAllocation;
  void* data = nullptr;
  const cudaError_t error = small ? cudaMallocAsync(&data, size, stream_) : cudaMalloc(&data, size);
  if (error != cudaSuccess) return NoDeviceMemory(size, purpose, error);
  DeviceBuffer buffer(data, size, small ? &FreeSmall : &FreeLarge);
  RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(data, 0, size, stream_), purpose));
  return buffer;
}

absl::StatusOr<std::byte*> CudaDevice::Stage(std::byte* to, size_t bytes) {
  Staging& staging = staging_[next_staging_];
  RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(staging.copied), "staging"));
  if (staging.bytes < bytes) {
    if (staging.data != nullptr) cudaFreeHost(staging.data);
    staging.data = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&staging.data, bytes), "staging"));
    staging.bytes = bytes;
  }
  staged_to_ = to;
  staged_bytes_ = bytes;
  return static_cast<std::byte*>(staging.data);
}

absl::Status CudaDevice::WriteBack() {
  Staging& staging = staging_[next_staging_];
  next_staging_ = 1 - next_staging_;
  RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(staged_to_, staging.data, staged_bytes_, cudaMemcpyHostToDevice, stream_),
      "copy to the device"));
  return CudaStatus(cudaEventRecord(staging.copied, stream_), "copy to the device");
}

absl::Status CudaDevice::Read(const void* from, std::span<std::byte> out) {
  RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(out.data(), from, out.size(), cudaMemcpyDeviceToHost, stream_),
                 "copy from the device"));
  return CudaStatus(cudaStreamSynchronize(stream_), "copy from the device");
}

// A failed record shows when the mark is waited for: the device is broken.
uint64_t CudaDevice::Mark() {
  cudaEventRecord(marks_[num_marks_ % marks_.size()], stream_);
  spans_[num_marks_ % spans_.size()] = {begun_, last_span_};
  if (std::exchange(begun_, false)) last_span_ = num_marks_;
  return num_marks_++;
}

void CudaDevice::BeginSpan() {
  if (begun_) return;
  begun_ = cudaEventRecord(begins_[num_marks_ % begins_.size()], stream_) == cudaSuccess;
}

// Read from events that have run, so nothing waits.
std::optional<DeviceSpan> CudaDevice::SpanOf(uint64_t mark) {
  const auto [begun, before] = spans_[mark % spans_.size()];
  if (!begun || !before.has_value() || num_marks_ - *before > marks_.size()) return std::nullopt;
  const cudaEvent_t begin = begins_[mark % begins_.size()];
  float gap_ms = 0, busy_ms = 0;
  if (cudaEventElapsedTime(&gap_ms, marks_[*before % marks_.size()], begin) != cudaSuccess ||
      cudaEventElapsedTime(&busy_ms, begin, marks_[mark % marks_.size()]) != cudaSuccess) {
    return std::nullopt;
  }
  return DeviceSpan{1e-3 * gap_ms, 1e-3 * busy_ms};
}

absl::Status CudaDevice::Wait(uint64_t mark) {
  RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(marks_[mark % marks_.size()]), "step"));
  return CudaStatus(cudaPeekAtLastError(), "step");
}

// A callback on the step stream itself would hold up the step behind it. Unlike a host function, a
// stream callback comes after a fault too.
void CudaDevice::NotifyWhenDone(std::function<void()> done) {
  auto owned = std::make_unique<std::function<void()>>(std::move(done));
  if (cudaEventRecord(notify_event_, stream_) == cudaSuccess &&
      cudaStreamWaitEvent(notify_stream_, notify_event_, 0) == cudaSuccess &&
      cudaStreamAddCallback(notify_stream_, &CallAndDelete, owned.get(), 0) == cudaSuccess) {
    owned.release();
    return;
  }
  (*owned)();  // a broken device: whoever waits learns why when it asks
}

absl::StatusOr<std::unique_ptr<CopyLane>> CudaDevice::MakeCopyLane() {
  return CudaCopyLane::Create(index_, stream_);
}

}  // namespace rootstock
