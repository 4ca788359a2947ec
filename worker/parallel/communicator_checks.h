// One test body for every communicator: what each rank does and expects.
#pragma once

#include "worker/parallel/communicator.h"

namespace rootstock {

// Every rank of the group calls it; failures are reported to GoogleTest. OK when the calls were.
absl::Status CheckCollectives(Communicator& communicator);
// A rank's arguments contradict each other: an error at once, on all ranks alike, nothing sent.
absl::Status CheckBadArguments(Communicator& communicator);

}  // namespace rootstock
