// Collectives between GPUs: our own for small messages where the GPUs reach each other's memory,
// NCCL's for the rest.
#pragma once

#include <mpi.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "worker/device/device.h"
#include "worker/parallel/communicator.h"
#include "worker/parallel/group_loss.h"

namespace rootstock {

// Up to how many bytes of payload our own algorithms are taken; tp_rank 0's hold for all.
struct AlgorithmTable {
  uint64_t one_shot = 0;  // of a sum, and of a rank's part in a gather
  uint64_t two_shot = 0;  // of a sum
};
// Measured on H200: docs/benchmarks.md. {} for groups with more ranks than our own take.
AlgorithmTable DefaultAlgorithms(int size);

struct NcclOptions {
  std::optional<AlgorithmTable> algorithms;
  // A step that lasts longer has lost a rank.
  std::chrono::milliseconds limit{3000};
  // And so has a wait of our own kernels. Longer than `limit`, for a wait that is given up lets its
  // step end, with wrong results.
  std::chrono::milliseconds wait_limit{5000};
  // What then; called once, on the watchdog's thread. Default: says why and ends the process.
  std::function<void(const GroupLoss& loss)> on_loss;
};

// Duplicates `comm`, borrows `device`, which is a CudaDevice. Every rank calls it.
absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(MPI_Comm comm, Device& device,
                                                                   const NcclOptions& options = {});

}  // namespace rootstock
