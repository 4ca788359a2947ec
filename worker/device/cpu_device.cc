#include "worker/device/cpu_device.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/device/cpu_copy_lane.h"

namespace rootstock {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

void Unmap(void* data, size_t bytes) { munmap(data, bytes); }

}  // namespace

absl::StatusOr<DeviceBuffer> AllocateHostMemory(size_t bytes, const std::string& purpose) {
  const size_t size = std::max<size_t>(bytes, 1);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return MakeError(absl::StatusCode::kResourceExhausted, Reason::kNoMemory, purpose,
                     absl::StrCat(bytes), "bytes of host memory are not to be had");
  }
  if (size >= kHugePage) madvise(data, size, MADV_HUGEPAGE);
  return DeviceBuffer(data, size, &Unmap);
}

int CpuThreads(int ranks_on_host) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::max(1, cores / std::max(1, ranks_on_host));
}

absl::StatusOr<DeviceBuffer> CpuDevice::Allocate(size_t bytes, const std::string& purpose) {
  return AllocateHostMemory(bytes, purpose);
}

absl::StatusOr<std::unique_ptr<CopyLane>> CpuDevice::MakeCopyLane() {
  return std::make_unique<CpuCopyLane>();
}

absl::Status CpuDevice::Read(const void* from, std::span<std::byte> out) {
  std::memcpy(out.data(), from, out.size());
  return absl::OkStatus();
}

}  // namespace rootstock
