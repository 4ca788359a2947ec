#include "coordinator/cluster/group_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/log.h"
#include "common/wire/plan_wire.h"
#include "coordinator/cluster/cluster_rig.h"

namespace rootstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(GroupServiceTest, AttachThenCommandsAndCompletionsInOrder) {
  FakeGroup group(channel_);
  group.Attach();
  directory_.events.WaitFor(2);
  for (uint64_t id = 1; id <= 500; ++id) {
    directory_.link->Send({CommandId(id), Epoch{7, 1}, ReleaseSlots{{SequenceSlot(id)}}});
  }
  for (uint64_t id = 1; id <= 500; ++id) {
    const auto message = group.Read();
    ASSERT_EQ(message.command().id(), id);
    ASSERT_EQ(message.command().release().slots(0), id);
    ASSERT_TRUE(group.Complete(id));
  }
  const auto events = directory_.events.WaitFor(502);
  ASSERT_EQ(events.size(), 502u);
  EXPECT_THAT(std::vector(events.begin(), events.begin() + 3),
              ElementsAre("hello 1", "attached 1", "completion 1"));
  EXPECT_EQ(events.back(), "completion 500");
  EXPECT_THAT(attached_.WaitFor(1), ElementsAre("1"));
}

TEST_F(GroupServiceTest, ARefusedGroupHearsWhy) {
  FakeGroup group(channel_);
  group.Hello("other");
  const auto message = group.Read();
  EXPECT_EQ(message.refuse().reason(), "group_mismatch");
  EXPECT_THAT(message.refuse().message(), HasSubstr("pool=other"));
  EXPECT_EQ(group.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  FakeGroup second(channel_);
  second.Hello();
  second.Report(FromProto(second.Read().attach())->epoch, /*num_pages=*/2);
  EXPECT_THAT(second.Read().refuse().message(), HasSubstr("num_pages=2: too few"));
  EXPECT_THAT(directory_.events.WaitFor(2), ElementsAre("hello 1", "forming lost g0 1"));
}

TEST_F(GroupServiceTest, MessagesOutOfTurnAndStaleReportsAreRefused) {
  FakeGroup early(channel_);
  early.Complete(1);
  EXPECT_THAT(early.Read().refuse().message(), HasSubstr("completion"));
  FakeGroup stale(channel_);
  stale.Hello();
  stale.Read();
  stale.Report(Epoch{6, 1});
  EXPECT_EQ(stale.Read().refuse().reason(), "stale_epoch");
  FakeGroup empty_handed(channel_);
  empty_handed.HalfClose();
  EXPECT_TRUE(empty_handed.End().ok());
}

TEST_F(GroupServiceTest, AGroupThatObeysNoEpochIsTold) {
  InitLogging("test", LogLevel::kInfo);
  testing::internal::CaptureStderr();
  FakeGroup group(channel_);
  group.Hello();
  group.Read();
  group.HalfClose();
  EXPECT_TRUE(group.End().ok());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("group g0 left without obeying epoch 7.1"));
}

TEST_F(GroupServiceTest, ANewerStreamEndsTheOlder) {
  FakeGroup older(channel_);
  older.Attach();
  directory_.events.WaitFor(2);
  const auto old_link = directory_.link;
  FakeGroup newer(channel_);
  newer.Attach();
  EXPECT_EQ(older.End().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(directory_.events.WaitFor(5),
              ElementsAre("hello 1", "attached 1", "hello 2", "lost 1", "attached 2"));
  EXPECT_THAT(attached_.WaitFor(3), ElementsAre("1", "0", "1"));
  old_link->Send({CommandId(1), Epoch{7, 1}, ReleaseSlots{}});  // to nobody
  directory_.link->Send({CommandId(2), Epoch{7, 2}, ReleaseSlots{}});
  EXPECT_EQ(newer.Read().command().id(), 2u);
}

TEST_F(GroupServiceTest, ARefusedStreamLeavesTheCurrentOneAlone) {
  FakeGroup current(channel_);
  current.Attach();
  directory_.events.WaitFor(2);
  FakeGroup bad(channel_);
  bad.Hello("other");
  EXPECT_FALSE(bad.End().ok());
  directory_.link->Send({CommandId(1), Epoch{7, 1}, ReleaseSlots{}});
  EXPECT_EQ(current.Read().command().id(), 1u);
}

TEST_F(GroupServiceTest, LossIsToldOnce) {
  FakeGroup group(channel_);
  group.Attach();
  directory_.events.WaitFor(2);
  group.Cancel();
  EXPECT_THAT(directory_.events.WaitFor(3), ElementsAre("hello 1", "attached 1", "lost 1"));
  directory_.link->Send({CommandId(1), Epoch{7, 1}, ReleaseSlots{}});
  FakeGroup again(channel_);
  again.Attach();
  const auto events = directory_.events.WaitFor(5);
  EXPECT_EQ(events.back(), "attached 2");
}

TEST_F(GroupServiceTest, AStreamThatEndsBeforeItsAttachIsTold) {
  FakeGroup gone(channel_);
  gone.Hello();
  gone.Read();
  gone.Cancel();
  EXPECT_EQ(directory_.events.WaitFor(2).back(), "forming lost g0 1");
  FakeGroup refused(channel_);
  refused.Hello();
  refused.Report(FromProto(refused.Read().attach())->epoch, /*num_pages=*/2);
  EXPECT_FALSE(refused.End().ok());
  EXPECT_EQ(directory_.events.WaitFor(4).back(), "forming lost g0 2");
  FakeGroup whole(channel_);
  whole.Attach();
  directory_.events.WaitFor(6);
  whole.Cancel();
  EXPECT_EQ(directory_.events.WaitFor(7).back(), "lost 3");
}

TEST_F(GroupServiceTest, LeavingAndLeave) {
  FakeGroup group(channel_);
  group.Attach();
  group.Leaving();
  EXPECT_EQ(directory_.events.WaitFor(3).back(), "leaving");
  directory_.link->SendLeave();
  EXPECT_TRUE(group.Read().has_leave());
  group.HalfClose();
  EXPECT_TRUE(group.End().ok());
  EXPECT_EQ(directory_.events.WaitFor(4).back(), "lost 1");
}

TEST_F(GroupServiceTest, ACommandTooLargeLosesTheGroupAndNotTheServer) {
  FakeGroup group(channel_);
  group.Attach();
  directory_.events.WaitFor(2);
  StepPlan plan;
  plan.rows.resize(1);
  plan.rows[0].tokens.assign(5'000'000, 1);
  directory_.link->Send({CommandId(1), Epoch{7, 1}, plan});
  EXPECT_FALSE(group.End().ok());
  EXPECT_EQ(directory_.events.WaitFor(3).back(), "lost 1");
}

TEST_F(GroupServiceTest, CloseEndsTheStreamOfAGroupThatHangs) {
  FakeGroup group(channel_);
  group.Attach();
  directory_.events.WaitFor(2);
  StepPlan plan;
  plan.rows.resize(1);
  plan.rows[0].tokens.assign(100'000, 1);
  // More than the transport takes while nobody reads.
  for (uint64_t id = 1; id <= 50; ++id) directory_.link->Send({CommandId(id), Epoch{7, 1}, plan});
  directory_.link->Close(absl::UnavailableError("step 1 took too long"));
  EXPECT_EQ(directory_.events.WaitFor(3).back(), "lost 1");
  EXPECT_FALSE(group.End().ok());
  directory_.link->Close(absl::UnavailableError("again"));
  FakeGroup again(channel_);
  again.Attach();
  EXPECT_EQ(directory_.events.WaitFor(5).back(), "attached 2");
}

}  // namespace
}  // namespace rootstock
