// Collectives in host memory over MPI.
#pragma once

#include <mpi.h>

#include <climits>
#include <vector>

#include "worker/parallel/collective_stats.h"
#include "worker/parallel/communicator.h"

namespace rootstock {

// Sums in rank order whatever the length, so an element's bits depend neither on how many others
// are summed with it nor on MPI's choice of algorithm. *Step thread only.*
class MpiCommunicator : public Communicator {
 public:
  // Duplicates `comm`; the caller made MPI_Init. max_count: most elements of one MPI call.
  explicit MpiCommunicator(MPI_Comm comm, size_t max_count = INT_MAX);
  ~MpiCommunicator() override;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::Status AllReduceSum(void* data, size_t n, DType type) override;
  absl::Status AllGather(const void* in, std::span<const size_t> counts, void* out,
                         DType type) override;
  absl::Status Gather(const void* in, std::span<const size_t> counts, void* out, DType type,
                      int root) override;
  absl::Status Broadcast(void* data, size_t bytes, int root) override;
  absl::Status Agree(const absl::Status& mine) override;
  const CollectiveStats& stats() const override { return stats_; }

 private:
  // One piece of at most max_count_ elements over all ranks.
  absl::Status SumPiece(std::span<float> data);
  absl::Status ScatterReduceGather(std::span<float> data);

  const size_t max_count_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::vector<float> parts_;  // [size, piece]: what the ranks sent, before the sum
  std::vector<float> sum_;
  CollectiveStats stats_;
};

}  // namespace rootstock
