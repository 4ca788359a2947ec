// The tp_ranks that share a host.
#pragma once

#include <vector>

namespace rootstock {

struct Node {
  int local_rank = 0;  // 0 fetches for its node
  int local_size = 1;
  std::vector<int> tp_ranks;  // by local rank, ascending
};

// Of MPI_COMM_WORLD; every rank calls it.
Node FindNode();

}  // namespace rootstock
