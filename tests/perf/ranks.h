// The processes of a bench over several tp_ranks.
#pragma once

#include "absl/status/status.h"

namespace rootstock {

// Whether mpirun started this process.
bool IsRank();

// Turns this process into an mpirun of `ranks` of it with the same arguments: returns where mpirun
// has done so already, or for 0, as it was started; or an error.
absl::Status BecomeRanks(int ranks, char** argv);

}  // namespace rootstock
