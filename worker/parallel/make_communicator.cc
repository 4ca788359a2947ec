#include "worker/parallel/make_communicator.h"

#include <mpi.h>

#include <utility>

#include "worker/parallel/mpi_communicator.h"
#include "worker/parallel/nccl_communicator.h"

namespace rootstock {

absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(
    Device& device, std::function<void(const std::string& why)> on_loss) {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (!device.host_addressable() && size > 1) {
    NcclOptions options;
    options.on_loss = std::move(on_loss);
    return MakeNcclCommunicator(MPI_COMM_WORLD, device, options);
  }
  return std::make_unique<MpiCommunicator>(MPI_COMM_WORLD);
}

}  // namespace rootstock
