#include "worker/parallel/node.h"

#include <mpi.h>

namespace rootstock {

Node FindNode() {
  Node node;
  MPI_Comm local = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
  MPI_Comm_rank(local, &node.local_rank);
  MPI_Comm_size(local, &node.local_size);
  int tp_rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &tp_rank);
  node.tp_ranks.resize(node.local_size);
  MPI_Allgather(&tp_rank, 1, MPI_INT, node.tp_ranks.data(), 1, MPI_INT, local);
  MPI_Comm_free(&local);
  return node;
}

}  // namespace rootstock
