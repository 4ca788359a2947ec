#include "worker/parallel/make_communicator.h"

#include <mpi.h>

#include "worker/parallel/mpi_communicator.h"

namespace rootstock {

absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(Device& device,
                                                               const NcclOptions& options) {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (!device.host_addressable() && size > 1) {
    return MakeNcclCommunicator(MPI_COMM_WORLD, device, options);
  }
  return std::make_unique<MpiCommunicator>(MPI_COMM_WORLD);
}

}  // namespace rootstock
