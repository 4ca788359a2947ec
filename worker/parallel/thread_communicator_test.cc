#include "worker/parallel/thread_communicator.h"

#include <gtest/gtest.h>

#include <chrono>

#include "common/base/status.h"
#include "worker/parallel/communicator_checks.h"

namespace rootstock {
namespace {

class ThreadCommunicatorTest : public testing::TestWithParam<int> {};

TEST_P(ThreadCommunicatorTest, Collectives) {
  EXPECT_TRUE(RunOnRanks(GetParam(), CheckCollectives).ok());
}

TEST_P(ThreadCommunicatorTest, BadArguments) {
  EXPECT_TRUE(RunOnRanks(GetParam(), CheckBadArguments).ok());
}

INSTANTIATE_TEST_SUITE_P(Ranks, ThreadCommunicatorTest, testing::Values(1, 2, 3, 4, 8));

TEST(ThreadCommunicator, LostRankHangsNobody) {
  const absl::Status status = RunOnRanks(3, [](Communicator& c) -> absl::Status {
    std::vector<float> data(4, 1.0f);
    RETURN_IF_ERROR(c.AllReduceSum(data.data(), data.size(), DType::kF32));
    if (c.rank() == 1) return absl::DataLossError("rank 1 is gone");
    const absl::Status waits = c.AllReduceSum(data.data(), data.size(), DType::kF32);
    EXPECT_EQ(waits, absl::DataLossError("rank 1 is gone"));
    EXPECT_EQ(c.Broadcast(nullptr, 0, 0), waits);  // and it stays gone
    return waits;
  });
  EXPECT_EQ(status, absl::DataLossError("rank 1 is gone"));
}

TEST(ThreadCommunicator, UnequalLengthsAreAnErrorOnEveryRank) {
  EXPECT_FALSE(RunOnRanks(2, [](Communicator& c) -> absl::Status {
                 std::vector<float> data(c.rank() + 1);
                 const absl::Status status = c.AllReduceSum(data.data(), data.size(), DType::kF32);
                 EXPECT_FALSE(status.ok());
                 return status;
               }).ok());
}

TEST(ThreadCommunicator, CountsCallsAndBytes) {
  const auto self = ThreadCommunicator::Self();
  std::vector<float> data(10);
  ASSERT_TRUE(self->AllReduceSum(data.data(), data.size(), DType::kF32).ok());
  ASSERT_TRUE(self->AllReduceSum(data.data(), data.size(), DType::kF32).ok());
  const CollectiveCounters& sums = self->stats().of(CollectiveOp::kAllReduce);
  EXPECT_EQ(sums.calls, 2u);
  EXPECT_EQ(sums.bytes, 80u);
  EXPECT_GE(sums.seconds, 0.0);
  EXPECT_EQ(self->stats().of(CollectiveOp::kBroadcast).calls, 0u);
}

TEST(CollectiveStats, ReplayedCallsAddUp) {
  const auto self = ThreadCommunicator::Self();
  std::vector<float> data(10);
  ASSERT_TRUE(self->AllReduceSum(data.data(), 10, DType::kF32).ok());
  const CollectiveStats before = self->stats();
  ASSERT_TRUE(self->AllReduceSum(data.data(), 5, DType::kF32).ok());
  const CollectiveStats step = self->stats().Since(before);
  CollectiveStats total = self->stats();
  total.Add(step);
  EXPECT_EQ(total.of(CollectiveOp::kAllReduce).calls, 3u);
  EXPECT_EQ(total.of(CollectiveOp::kAllReduce).bytes, 80u);
  EXPECT_EQ(step.of(CollectiveOp::kAllReduce).seconds, 0.0);
}

TEST(OwnWork, LeavesOutTheTimeInCollectives) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kInCollective(20);
  CollectiveStats stats;
  {
    const CollectiveStats::Timer before(stats, CollectiveOp::kBroadcast, 0);
  }
  const Clock::time_point start = Clock::now();
  const OwnWork work(stats);
  {
    const CollectiveStats::Timer timer(stats, CollectiveOp::kAllReduce, 4);
    for (const auto begin = Clock::now(); Clock::now() - begin < kInCollective;) {
    }
  }
  const uint64_t own = work.Microseconds();
  const auto rest = Clock::now() - start - kInCollective;
  EXPECT_LE(own, std::chrono::duration_cast<std::chrono::microseconds>(rest).count());
}

}  // namespace
}  // namespace rootstock
