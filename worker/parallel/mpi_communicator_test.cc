// Runs as one process and under mpirun; every rank runs every test.
#include "worker/parallel/mpi_communicator.h"

#include <gtest/gtest.h>

#include "worker/parallel/communicator_checks.h"

namespace rootstock {
namespace {

TEST(MpiCommunicator, Collectives) {
  MpiCommunicator communicator(MPI_COMM_WORLD);
  EXPECT_TRUE(CheckCollectives(communicator).ok());
}

// What does not fit one call's int count goes in pieces; a small limit shows it.
TEST(MpiCommunicator, CollectivesInPieces) {
  MpiCommunicator communicator(MPI_COMM_WORLD, 1000);
  EXPECT_TRUE(CheckCollectives(communicator).ok());
}

TEST(MpiCommunicator, BadArguments) {
  MpiCommunicator communicator(MPI_COMM_WORLD);
  EXPECT_TRUE(CheckBadArguments(communicator).ok());
}

TEST(MpiCommunicator, CountsCallsAndBytes) {
  MpiCommunicator communicator(MPI_COMM_WORLD);
  std::vector<std::byte> data(12);
  ASSERT_TRUE(communicator.Broadcast(data.data(), data.size(), 0).ok());
  EXPECT_EQ(communicator.stats().of(CollectiveOp::kBroadcast).calls, 1u);
  EXPECT_EQ(communicator.stats().of(CollectiveOp::kBroadcast).bytes, 12u);
}

}  // namespace
}  // namespace rootstock

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  MPI_Finalize();
  return result;
}
