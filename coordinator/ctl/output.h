// stdout may be closed or full: who relies on what was printed must hear of it.
#pragma once

#include "absl/status/status.h"

namespace rootstock {

// Descriptors 0 to 2 that the caller closed become ones that can't be used: else the first socket
// would be one of them and be written to. First of all in a main.
void HoldStandardStreams();

// Whether a write to stdout has failed.
bool OutputLost();

// Writes out what is buffered. UNAVAILABLE/io_error when anything printed so far was lost.
absl::Status FinishOutput();

}  // namespace rootstock
