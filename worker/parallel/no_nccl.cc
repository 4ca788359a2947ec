// Stands in for nccl_communicator.cc in builds without CUDA or NCCL.
#include "common/base/status.h"
#include "worker/parallel/make_communicator.h"
#include "worker/parallel/nccl_communicator.h"

namespace rootstock {

absl::Status CanJoinGpus() {
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInvalidArgument, "device",
                   "cuda",
                   "several ranks on GPUs need NCCL, which this build has not; one rank does "
                   "without, --device cpu takes any number");
}

std::string NcclVersion() { return "none"; }

absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(MPI_Comm, Device&,
                                                                   const NcclOptions&) {
  return CanJoinGpus();
}

}  // namespace rootstock
