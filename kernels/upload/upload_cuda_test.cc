#include "kernels/upload/upload_cuda.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/test_device.h"

namespace rootstock::kernels::cuda {
namespace {

// Pinned memory. *One thread.*
class PinnedBytes {
 public:
  explicit PinnedBytes(size_t bytes) {
    EXPECT_EQ(cudaSuccess, cudaMallocHost(reinterpret_cast<void**>(&data_), bytes));
  }
  ~PinnedBytes() { cudaFreeHost(data_); }
  uint8_t* get() const { return data_; }

 private:
  uint8_t* data_ = nullptr;
};

TEST(UploadCudaTest, EveryByteAndNoMore) {
  constexpr size_t kMost = (size_t{1} << 20) + 40;
  const PinnedBytes from(kMost);
  for (const size_t bytes : {0ul, 1ul, 15ul, 16ul, 52ul, 4096ul, 100012ul, kMost - 20}) {
    for (size_t i = 0; i < kMost; ++i) from.get()[i] = static_cast<uint8_t>(i * 7 + bytes);
    DeviceArray<uint8_t> to(kMost);  // 0xff
    ROOTSTOCK_CUDA_OK(Upload(to.get(), from.get(), bytes, nullptr));
    ROOTSTOCK_CUDA_OK(cudaDeviceSynchronize());
    const std::vector<uint8_t> got = to.Get();
    for (size_t i = 0; i < kMost; ++i) {
      ASSERT_EQ(got[i], i < bytes ? from.get()[i] : 0xff) << bytes << " bytes, at " << i;
    }
  }
}

// What the host wrote after an earlier upload is seen.
TEST(UploadCudaTest, AgainFromTheSamePlace) {
  constexpr size_t kBytes = 6000;
  const PinnedBytes from(kBytes);
  DeviceArray<uint8_t> to(kBytes);
  for (int round = 0; round < 50; ++round) {
    for (size_t i = 0; i < kBytes; ++i) from.get()[i] = static_cast<uint8_t>(i + round);
    ROOTSTOCK_CUDA_OK(Upload(to.get(), from.get(), kBytes, nullptr));
    ROOTSTOCK_CUDA_OK(cudaDeviceSynchronize());
    ASSERT_EQ(to.Get(), std::vector<uint8_t>(from.get(), from.get() + kBytes)) << round;
  }
}

// A copy of many milliseconds is under way on another stream.
TEST(UploadCudaTest, DoesNotWaitForTheCopyEngine) {
  constexpr size_t kLarge = size_t{512} << 20, kBytes = 4096;
  const PinnedBytes large(kLarge), from(kBytes);
  DeviceArray<uint8_t> large_to(kLarge), to(kBytes);
  cudaStream_t copies = nullptr, steps = nullptr;
  ROOTSTOCK_CUDA_OK(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
  ROOTSTOCK_CUDA_OK(cudaStreamCreateWithFlags(&steps, cudaStreamNonBlocking));
  ROOTSTOCK_CUDA_OK(Upload(to.get(), from.get(), kBytes, steps));  // loads the kernel
  ROOTSTOCK_CUDA_OK(cudaDeviceSynchronize());
  ROOTSTOCK_CUDA_OK(
      cudaMemcpyAsync(large_to.get(), large.get(), kLarge, cudaMemcpyHostToDevice, copies));
  ROOTSTOCK_CUDA_OK(Upload(to.get(), from.get(), kBytes, steps));
  ROOTSTOCK_CUDA_OK(cudaStreamSynchronize(steps));
  EXPECT_EQ(cudaStreamQuery(copies), cudaErrorNotReady);
  cudaGetLastError();
  ROOTSTOCK_CUDA_OK(cudaDeviceSynchronize());
  cudaStreamDestroy(copies);
  cudaStreamDestroy(steps);
}

}  // namespace
}  // namespace rootstock::kernels::cuda
