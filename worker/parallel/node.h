// The tp_ranks that share a host.
#pragma once

namespace rootstock {

struct Node {
  int local_rank = 0;  // 0 fetches for its node
  int local_size = 1;
};

// Of MPI_COMM_WORLD; every rank calls it.
Node FindNode();

}  // namespace rootstock
