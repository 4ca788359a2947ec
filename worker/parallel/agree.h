// One outcome for all ranks of a group.
#pragma once

#include <mpi.h>

#include <string>

#include "absl/status/status.h"

namespace rootstock {

// As bytes, payloads included, and back.
std::string PackStatus(const absl::Status& status);
absl::Status UnpackStatus(const std::string& bytes);

// See Communicator::Agree. Every rank of `comm` calls it.
absl::Status AgreeOver(MPI_Comm comm, const absl::Status& mine);

// What all ranks return when `rank` has failed.
absl::Status FailedOn(int rank, const absl::Status& status);

}  // namespace rootstock
