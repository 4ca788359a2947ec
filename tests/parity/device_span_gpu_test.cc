// Times of a GPU in spans and between them, by its own clock.
#include <gtest/gtest.h>

#include "worker/device/cuda_device.h"

namespace rootstock {
namespace {

// *One thread.*
class DeviceSpanGpuTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = size_t{1} << 30;
  static constexpr double kLong = 1e-3;  // Work takes longer than this, nothing at all less

  DeviceSpanGpuTest() {
    auto device = CudaDevice::Create(0);
    EXPECT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    memory_ = *device_->Allocate(kBytes, "test");
  }
  // Ten times 1 GiB written: 2 ms and more.
  void Work() {
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(cudaMemsetAsync(memory_.data(), i, kBytes, device_->stream()), cudaSuccess);
    }
  }
  std::optional<DeviceSpan> SpanOf(uint64_t mark) {
    EXPECT_TRUE(device_->Wait(mark).ok());
    return device_->SpanOf(mark);
  }

  std::unique_ptr<CudaDevice> device_;
  DeviceBuffer memory_;
};

TEST_F(DeviceSpanGpuTest, WhatLiesBetweenSpansIsTheGap) {
  device_->BeginSpan();
  EXPECT_FALSE(SpanOf(device_->Mark()).has_value());  // none before it
  device_->BeginSpan();
  Work();
  device_->BeginSpan();  // goes on: a step of several batches
  const auto busy = SpanOf(device_->Mark());
  ASSERT_TRUE(busy.has_value());
  EXPECT_GT(busy->busy, kLong);
  Work();  // of nobody's span
  EXPECT_FALSE(SpanOf(device_->Mark()).has_value());
  device_->BeginSpan();
  const auto idle = SpanOf(device_->Mark());
  ASSERT_TRUE(idle.has_value());
  EXPECT_LT(idle->busy, kLong);
  EXPECT_GT(idle->gap, kLong);
}

// As steps are: the second is enqueued while the first runs.
TEST_F(DeviceSpanGpuTest, SpansEnqueuedTogetherHaveNoGap) {
  device_->BeginSpan();
  device_->Mark();
  uint64_t marks[2];
  for (uint64_t& mark : marks) {
    device_->BeginSpan();
    Work();
    mark = device_->Mark();
  }
  for (const uint64_t mark : marks) {
    const auto span = SpanOf(mark);
    ASSERT_TRUE(span.has_value());
    EXPECT_LT(span->gap, kLong);
    EXPECT_GT(span->busy, kLong);
  }
}

// A mark's events are recorded anew by the eighth after it.
TEST_F(DeviceSpanGpuTest, ASpanBeforeTheLatestMarksIsForgotten) {
  device_->BeginSpan();
  device_->Mark();
  for (int i = 0; i < 7; ++i) device_->Mark();
  device_->BeginSpan();
  EXPECT_FALSE(SpanOf(device_->Mark()).has_value());
}

}  // namespace
}  // namespace rootstock
