// What the registry's tables are, now and before.
#pragma once

#include "absl/status/status.h"
#include "coordinator/adapters/sqlite.h"

namespace rootstock {

// Makes the tables, or changes those of an earlier release into today's: all or nothing.
// FAILED_PRECONDITION when a later release has written them.
absl::Status PrepareSchema(SqlDatabase& db);

}  // namespace rootstock
