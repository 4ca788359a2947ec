// A group's life between coordinator and ranks: attach, obey, lose, attach anew, leave.
#pragma once

#include <string>

#include "common/plan/plan.h"
#include "worker/link/blobs/blob_cache.h"
#include "worker/link/executor.h"
#include "worker/link/group_bus.h"

namespace rootstock {

struct LinkOptions {
  std::string coordinator;   // host:port
  bool node_leader = true;   // this rank fetches for its node
  GroupInfo info;            // what Hello says
  std::string object_store;  // URI; asked before the coordinator, unless empty
};

// Runs until the coordinator lets the group go, refuses it, or a signal ends it: the exit code. An
// error means that the group is broken and must be aborted. Every rank calls it, on the thread that
// made MPI_Init; SIGUSR1 and SIGTERM must be blocked.
absl::StatusOr<int> RunGroup(GroupBus& bus, CommandExecutor& executor, BlobCache& cache,
                             const LinkOptions& options);

}  // namespace rootstock
