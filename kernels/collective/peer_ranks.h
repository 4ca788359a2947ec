// A group for tests. Ranks are streams of one process: on as many GPUs as there are, several on one
// where they are few.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "kernels/collective/all_reduce_cuda.h"
#include "kernels/collective/sum_norm_rows.h"
#include "kernels/cuda/test_device.h"

namespace rootstock::kernels::cuda {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr uint64_t kLimitNs = 5'000'000'000;

// *One thread.*
class Ranks {
 public:
  explicit Ranks(int size, uint64_t limit_ns = kLimitNs, size_t buffer_bytes = kBufferBytes)
      : groups_(size), streams_(size) {
    // Read when CUDA starts: a queue a rank, so that none waits behind another's kernel.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
    EXPECT_EQ(cudaSuccess, cudaGetDeviceCount(&devices_));
    EXPECT_EQ(cudaSuccess, cudaHostAlloc(reinterpret_cast<void**>(&words_), 8,
                                         cudaHostAllocMapped | cudaHostAllocPortable));
    words_[0] = words_[1] = 0;
    const int sharing = (size + devices_ - 1) / devices_;
    std::byte* inboxes[kMaxPeers] = {};
    for (int r = 0; r < size; ++r) {
      Use(r);
      for (int d = 0; d < std::min(size, devices_); ++d) {
        if (d != r % devices_) cudaDeviceEnablePeerAccess(d, 0);
      }
      cudaGetLastError();  // enabled before
      EXPECT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&streams_[r], cudaStreamNonBlocking));
      EXPECT_EQ(cudaSuccess,
                cudaMalloc(reinterpret_cast<void**>(&inboxes[r]), InboxBytes(buffer_bytes)));
      EXPECT_EQ(cudaSuccess,
                cudaMalloc(reinterpret_cast<void**>(&groups_[r].state), sizeof(PeerState)));
    }
    for (int r = 0; r < size; ++r) {
      PeerGroup& group = groups_[r];
      group.rank = r;
      group.size = size;
      group.sharing = sharing;
      group.sum_norm = &sum_norm_;
      std::copy_n(inboxes, kMaxPeers, group.inbox);
      group.buffer_bytes = buffer_bytes;
      group.abort = words_;
      group.stalled = words_ + 1;
      group.limit_ns = limit_ns;
      Use(r);
      EXPECT_EQ(cudaSuccess, ClearInbox(group, streams_[r]));
      if (r == 0) sum_norm_ = FindSumNormRows(size, sharing);
      if (r > 0 && r < devices_) LimitRows(FindSumNormRows(size, sharing));
    }
    Wait();
  }
  ~Ranks() {
    Wait();
    for (int r = 0; r < size(); ++r) {
      Use(r);
      cudaFree(groups_[r].inbox[r]);
      cudaFree(groups_[r].state);
      cudaStreamDestroy(streams_[r]);
    }
    cudaFreeHost(words_);
    cudaSetDevice(0);
  }

  int size() const { return static_cast<int>(groups_.size()); }
  const PeerGroup& group(int rank) const { return groups_[rank]; }
  cudaStream_t stream(int rank) const { return streams_[rank]; }
  volatile uint32_t* words() { return words_; }
  // No launch of SumAddRmsNorm has more rows than these.
  void LimitRows(const SumNormRows& rows) {
    for (size_t i = 0; i < rows.most.size(); ++i) {
      sum_norm_.most[i] = std::min(sum_norm_.most[i], rows.most[i]);
    }
  }
  void Use(int rank) const { cudaSetDevice(rank % devices_); }
  // What was copied to the devices is there: a stream of a rank does not wait for the default one.
  void Settle() const {
    for (int d = 0; d < std::min(size(), devices_); ++d) {
      Use(d);
      ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
    }
  }
  void Wait() const {
    for (int r = 0; r < size(); ++r) {
      Use(r);
      ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(streams_[r]));
    }
  }

 private:
  int devices_ = 1;
  std::vector<PeerGroup> groups_;
  SumNormRows sum_norm_;
  std::vector<cudaStream_t> streams_;
  uint32_t* words_ = nullptr;
};

using Bytes = std::vector<std::byte>;

inline std::vector<DeviceArray<std::byte>> OnRanks(const Ranks& ranks,
                                                   const std::vector<Bytes>& data) {
  std::vector<DeviceArray<std::byte>> out;
  for (int r = 0; r < ranks.size(); ++r) {
    ranks.Use(r);
    out.emplace_back(data[r]);
  }
  ranks.Settle();
  return out;
}

}  // namespace rootstock::kernels::cuda
