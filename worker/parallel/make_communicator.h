// The communicator that fits where a tp_rank computes.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/device/device.h"
#include "worker/parallel/communicator.h"
#include "worker/parallel/nccl_communicator.h"

namespace rootstock {

// Whether ranks on GPUs can form a group: FAILED_PRECONDITION when this build or host has no NCCL.
absl::Status CanJoinGpus();
// "2.28.9", or "none".
std::string NcclVersion();

// Among all processes of the MPI job; every rank calls it. Borrows `device`. An error is this
// rank's alone: the ranks agree on it before the first collective. options: of GPUs.
absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(Device& device,
                                                               const NcclOptions& options = {});

}  // namespace rootstock
