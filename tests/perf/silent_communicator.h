// A rank whose group is not there: collectives move nothing, so a step takes what this rank alone
// takes of it.
#pragma once

#include "worker/parallel/communicator.h"

namespace rootstock {

// *Step thread only.*
class SilentCommunicator : public Communicator {
 public:
  explicit SilentCommunicator(int size) : size_(size) {}

  int rank() const override { return 0; }
  int size() const override { return size_; }
  absl::Status AllReduceSum(void*, size_t, DType) override { return absl::OkStatus(); }
  absl::Status AllGather(const void*, std::span<const size_t>, void*, DType) override {
    return absl::OkStatus();
  }
  absl::Status Gather(const void*, std::span<const size_t>, void*, DType, int) override {
    return absl::OkStatus();
  }
  absl::Status Broadcast(void*, size_t, int) override { return absl::OkStatus(); }
  absl::Status Agree(const absl::Status& mine) override { return mine; }
  const CollectiveStats& stats() const override { return stats_; }

 private:
  const int size_;
  const CollectiveStats stats_;
};

}  // namespace rootstock
