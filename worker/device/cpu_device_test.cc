#include "worker/device/cpu_device.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

#include "common/base/status.h"

namespace rootstock {
namespace {

TEST(CpuDeviceTest, MemoryIsZeroedAlignedAndMoves) {
  CpuDevice device(1);
  for (size_t bytes : {size_t{1}, size_t{5000}, size_t{5} << 20}) {
    absl::StatusOr<DeviceBuffer> buffer = device.Allocate(bytes, "test");
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 4096, 0u);
    for (size_t i = 0; i < bytes; i += 997) EXPECT_EQ(buffer->as<char>()[i], 0);
    char* data = buffer->as<char>();
    data[bytes - 1] = 7;
    DeviceBuffer moved = std::move(*buffer);
    EXPECT_EQ(moved.as<char>(), data);
    EXPECT_EQ(buffer->data(), nullptr);
  }
}

TEST(CpuDeviceTest, TooMuchMemoryIsRefusedWithTheSize) {
  CpuDevice device(1);
  absl::StatusOr<DeviceBuffer> buffer = device.Allocate(size_t{1} << 60, "pages");
  ASSERT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(buffer.status())->reason, Reason::kNoMemory);
  EXPECT_NE(buffer.status().message().find("1152921504606846976"), std::string::npos);
}

TEST(CpuDeviceTest, ThreadsFollowTheAffinityMaskAndAreSharedByRanks) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  const int cores = CPU_COUNT(&before);
  EXPECT_EQ(CpuThreads(1), cores);
  EXPECT_EQ(CpuThreads(1000), 1);
  std::thread([&] {
    int first = 0;
    while (!CPU_ISSET(first, &before)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(CpuThreads(1), 1);
  }).join();
}

}  // namespace
}  // namespace rootstock
