// N tp_ranks in one process, for unit tests and for a group of one.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "worker/parallel/collective_stats.h"
#include "worker/parallel/communicator.h"

namespace rootstock {

// Where the ranks meet. *Thread-safe.*
class ThreadGroup {
 public:
  explicit ThreadGroup(int size) : size_(size), posted_(size) {}
  int size() const { return size_; }
  // Every call that waits or comes later returns `why`: a lost rank hangs nobody.
  void Abort(const absl::Status& why);

 private:
  friend class ThreadCommunicator;
  struct Posted {
    const void* data = nullptr;
    size_t bytes = 0;
  };
  // Returns when all ranks have come, or the reason of an Abort.
  absl::Status Meet();

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  uint64_t round_ = 0;
  absl::Status aborted_;
  std::vector<Posted> posted_;  // written by its rank before a Meet, read by all after it
  std::vector<float> sum_;
};

// Sums in rank order. *Each rank's own thread only.*
class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}
  // A group of one.
  static std::unique_ptr<ThreadCommunicator> Self() {
    return std::make_unique<ThreadCommunicator>(std::make_shared<ThreadGroup>(1), 0);
  }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  absl::Status AllReduceSum(void* data, size_t n, DType type) override;
  absl::Status AllGather(const void* in, std::span<const size_t> counts, void* out,
                         DType type) override;
  absl::Status Gather(const void* in, std::span<const size_t> counts, void* out, DType type,
                      int root) override;
  absl::Status Broadcast(void* data, size_t bytes, int root) override;
  absl::Status Agree(const absl::Status& mine) override;
  const CollectiveStats& stats() const override { return stats_; }

 private:
  // Shows the other ranks a buffer; returns when all have shown theirs.
  absl::Status Post(const void* data, size_t bytes);
  // Copies what the ranks posted, in rank order; counts in elements.
  absl::Status CopyPosted(std::span<const size_t> counts, void* out, DType type);

  const std::shared_ptr<ThreadGroup> group_;
  const int rank_;
  CollectiveStats stats_;
};

// Runs `rank_main` on `size` threads, one a tp_rank. A rank that returns an error aborts the group.
// The first error in time, if any.
absl::Status RunOnRanks(int size, const std::function<absl::Status(Communicator&)>& rank_main);

}  // namespace rootstock
