#include "coordinator/scheduler/scheduler.h"

#include "common/base/status.h"
#include "coordinator/scheduler/scheduler_views.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Scheduler, NothingToDoIsNothing) {
  const Decision d = Schedule(View(10));
  EXPECT_THAT(d.rows, IsEmpty());
}

TEST(Scheduler, DecodesFirstThenChunksThenAdmissions) {
  SchedulerView view = View(20);
  view.running = {Prefilling(1, 30, 8), Decoding(2, 6), Decoding(3, 5)};
  view.waiting = {Waiting(4, 3)};
  // 16 tokens: two decodes, the rest to the older prompt.
  EXPECT_THAT(Rows(Schedule(view)),
              ElementsAre(Row{false, 1, 1, 0}, Row{false, 2, 1, 1}, Row{false, 0, 14, 0}));
  view.running[0].computed = 25;
  EXPECT_THAT(Rows(Schedule(view)), ElementsAre(Row{false, 1, 1, 0}, Row{false, 2, 1, 1},
                                                Row{false, 0, 5, 0}, Row{true, 0, 3, 1}));
}

TEST(Scheduler, ALongPromptIsAdmittedByItsFirstChunkWithAllItsPages) {
  SchedulerView view = View(20);
  view.waiting = {Waiting(1, 40)};
  EXPECT_THAT(Rows(Schedule(view)), ElementsAre(Row{true, 0, 16, 10}));
}

TEST(Scheduler, PromptLogprobsShareTheBytesOfAResult) {
  SchedulerView view = View(20);
  view.limits.max_result_bytes = 100;
  view.running = {Prefilling(1, 8, 0), Prefilling(2, 8, 4), Prefilling(3, 8, 4)};
  view.running[0].token_bytes = 30;
  view.running[1].token_bytes = 30;  // 10 bytes are left
  view.waiting = {Waiting(4, 4)};
  EXPECT_THAT(Rows(Schedule(view)),
              ElementsAre(Row{false, 0, 3, 0}, Row{false, 2, 4, 0}, Row{true, 0, 4, 1}));
  view.running[0].token_bytes = 1000;
  EXPECT_THAT(Rows(Schedule(view)),
              ElementsAre(Row{false, 0, 1, 0}, Row{false, 2, 4, 0}, Row{true, 0, 4, 1}));
}

TEST(Scheduler, SharedPromptPagesAreNotComputedAgain) {
  SchedulerView view = View(20);
  view.waiting = {Waiting(1, 10)};
  view.waiting[0].shared_pages = 2;
  EXPECT_THAT(Rows(Schedule(view)), ElementsAre(Row{true, 0, 2, 1}));
}

TEST(Scheduler, KeepsTheCapOnSequences) {
  SchedulerView view = View(20);
  for (Order i = 0; i < 6; ++i) view.waiting.push_back(Waiting(i, 2));
  EXPECT_EQ(Schedule(view).rows.size(), 4u);
  view.free_slots = 3;
  EXPECT_EQ(Schedule(view).rows.size(), 3u);
  view.limits.max_new_sequences = 2;
  EXPECT_EQ(Schedule(view).rows.size(), 2u);
}

TEST(Scheduler, ASequenceThatEndsWithTheStepInFlightGetsNoRow) {
  SchedulerView view = View(0);
  view.running = {Decoding(1, 6)};
  view.running[0].computed = 6;
  view.running[0].preemptible = false;
  EXPECT_THAT(Schedule(view).rows, IsEmpty());
  EXPECT_THAT(Schedule(view).preempt, IsEmpty());
}

TEST(Scheduler, TheOldestPreemptsTheYoungest) {
  SchedulerView view = View(0);
  view.running = {Decoding(1, 5), Decoding(2, 6), Decoding(3, 6)};
  const Decision d = Schedule(view);
  EXPECT_THAT(d.preempt, ElementsAre(2));
  EXPECT_THAT(Rows(d), ElementsAre(Row{false, 0, 1, 1}, Row{false, 1, 1, 0}));
}

TEST(Scheduler, TheYoungestMakesWayItself) {
  SchedulerView view = View(0);
  view.running = {Decoding(1, 6), Decoding(2, 5)};
  const Decision d = Schedule(view);
  EXPECT_THAT(d.preempt, ElementsAre(1));
  EXPECT_THAT(Rows(d), ElementsAre(Row{false, 0, 1, 0}));
}

TEST(Scheduler, APreemptedSequenceIsNotAdmittedInTheSameStep) {
  SchedulerView view = View(0);
  view.running = {Decoding(1, 5), Decoding(2, 30)};
  view.waiting = {Waiting(3, 2)};
  const Decision d = Schedule(view);
  EXPECT_THAT(d.preempt, ElementsAre(1));
  EXPECT_EQ(d.rows.size(), 1u);
}

TEST(Scheduler, PagesSharedWithASiblingAreNotWorthPreempting) {
  SchedulerView view = View(0);
  view.running = {Decoding(1, 5), Decoding(2, 6), Decoding(3, 6)};
  view.running[2].freeable = 0;
  EXPECT_THAT(Schedule(view).preempt, ElementsAre(1));
}

TEST(Scheduler, AWaitingOneWithoutPagesStopsYoungerAdmissions) {
  SchedulerView view = View(3);
  view.waiting = {Waiting(1, 13), Waiting(2, 2)};
  EXPECT_THAT(Schedule(view).rows, IsEmpty());
}

TEST(Scheduler, MoreDecodesThanAStepTakesTakeTurns) {
  SchedulerView view = View(10);
  view.limits.max_decode_rows = 2;
  view.running = {Decoding(3, 6), Decoding(5, 5), Decoding(6, 6), Prefilling(8, 9, 4)};
  const Row prompt{false, 3, 5, 0};
  const auto turn = [&](Order last, bool first, bool second, bool third, Order next) {
    view.decode_turn = last;
    const Decision d = Schedule(view);
    std::vector<Row> want;
    if (first) want.push_back({false, 0, 1, 0});
    if (second) want.push_back({false, 1, 1, 1});
    if (third) want.push_back({false, 2, 1, 0});
    want.push_back(prompt);
    EXPECT_EQ(Rows(d), want) << last;
    EXPECT_EQ(d.decode_turn, next) << last;
  };
  turn(0, true, true, false, 5);
  turn(5, true, false, true, 3);
  turn(3, false, true, true, 6);
  turn(6, true, true, false, 5);
  turn(4, false, true, true, 6);  // whose turn it was has ended
  view.running[0].barred = true;  // two are left: both, and the turn stays
  turn(6, false, true, true, 6);
  view.running[0].barred = false;
  view.limits.max_decode_rows = 0;
  turn(5, true, true, true, 5);
}

TEST(Scheduler, WhoSitsOutKeepsItsPlaceInTheOrderOfPages) {
  SchedulerView view = View(1);
  view.limits.max_decode_rows = 1;
  view.decode_turn = 1;
  view.running = {Decoding(1, 5), Decoding(2, 5)};
  Decision d = Schedule(view);
  EXPECT_THAT(Rows(d), IsEmpty());
  EXPECT_THAT(d.preempt, ElementsAre(1));  // the page is the first one's
  view.free_pages = view.free_for_loads = 2;
  d = Schedule(view);
  EXPECT_THAT(Rows(d), ElementsAre(Row{false, 1, 1, 1}));
}

TEST(Scheduler, AdmissionNeedsRoomForTheFirstTokenToo) {
  SchedulerView view = View(2);
  view.waiting = {Waiting(1, 8)};
  EXPECT_THAT(Schedule(view).rows, IsEmpty());
  view.waiting[0].max_length = 8;  // max_tokens 1: the first token is the last
  EXPECT_EQ(Schedule(view).rows.size(), 1u);
}

TEST(Scheduler, AnAdmissionLeavesAPageForEachThatRuns) {
  SchedulerView view = View(2);
  view.running = {Decoding(1, 6), Decoding(2, 6)};
  view.waiting = {Waiting(3, 3)};
  const auto admits = [&] { return Rows(Schedule(view)).back().admit; };
  EXPECT_FALSE(admits());
  view.free_pages = view.free_for_loads = 3;
  EXPECT_TRUE(admits());
  // Who needs pages may have those of idle adapters, which need not leave for that.
  view.free_pages = view.free_for_loads = 2;
  view.idle_adapters = {{1}};
  EXPECT_TRUE(admits());
  EXPECT_THAT(Schedule(view).evict, IsEmpty());
  view.floors.adapters = view.adapter_pages;  // which would keep it
  EXPECT_FALSE(admits());
  view.floors.adapters = view.adapter_pages - 1;
  EXPECT_TRUE(admits());
  view.idle_adapters[0].wanted_by = 4;  // it is about to run
  EXPECT_FALSE(admits());
  view.waiting[0].order = 0;  // the oldest always gets on
  EXPECT_TRUE(admits());
}

TEST(Scheduler, ASuspectRunsAlone) {
  SchedulerView view = View(20);
  view.running = {Decoding(1, 6)};
  view.waiting = {Waiting(2, 2), Waiting(3, 2)};
  view.waiting[0].solo = true;
  EXPECT_EQ(Schedule(view).rows.size(), 1u);
  view.running.clear();
  EXPECT_THAT(Rows(Schedule(view)), ElementsAre(Row{true, 0, 2, 1}));
  view.running = {Decoding(2, 6)};
  view.running[0].solo = true;
  view.waiting = {Waiting(3, 2)};
  EXPECT_EQ(Schedule(view).rows.size(), 1u);
}

TEST(Scheduler, ABarredOneKeepsItsPlaceInTheOrderOfPages) {
  SchedulerView view = View(3);
  view.running = {Decoding(1, 5), Prefilling(3, 30, 8)};
  view.running[0].barred = true;  // one page is for it
  view.waiting = {Waiting(2, 8), Waiting(4, 2)};
  view.waiting[0].barred = true;  // it wants three
  EXPECT_THAT(Rows(Schedule(view)), ElementsAre(Row{false, 1, 16, 0}));
  view.running[1].computed = 28;
  view.free_pages = view.free_for_loads = 7;  // three are for them, one is left for each of three
  EXPECT_THAT(Rows(Schedule(view)), ElementsAre(Row{false, 1, 2, 0}, Row{true, 1, 2, 1}));
  view.free_pages = view.free_for_loads = 6;
  EXPECT_THAT(Rows(Schedule(view)), ElementsAre(Row{false, 1, 2, 0}));
}

TEST(Scheduler, ABarredOnePreemptsNobody) {
  SchedulerView view = View(0);
  view.running = {Decoding(1, 5), Decoding(2, 6), Decoding(3, 6)};
  view.running[0].barred = true;
  Decision d = Schedule(view);
  EXPECT_THAT(d.preempt, IsEmpty());
  EXPECT_THAT(Rows(d), ElementsAre(Row{false, 1, 1, 0}, Row{false, 2, 1, 0}));
  // What is free is its, and not its younger neighbours', though it wants more.
  view.running[0] = Prefilling(1, 12, 0);
  view.running[0].pages = 1;
  view.running[0].barred = true;
  view.running[1] = Decoding(2, 5);
  view.free_pages = view.free_for_loads = 1;
  d = Schedule(view);
  EXPECT_THAT(d.preempt, ElementsAre(2));
  EXPECT_THAT(Rows(d), ElementsAre(Row{false, 1, 1, 1}));
  // Nor does it make way while younger ones hold pages.
  view.running = {Decoding(1, 6), Decoding(2, 5), Decoding(3, 6)};
  view.running[1].barred = true;
  view.free_pages = view.free_for_loads = 0;
  d = Schedule(view);
  EXPECT_THAT(d.preempt, IsEmpty());
  EXPECT_THAT(Rows(d), ElementsAre(Row{false, 0, 1, 0}, Row{false, 2, 1, 0}));
}

TEST(Scheduler, ABarredOneTakesNoTokensOfTheStepButASlot) {
  SchedulerView view = View(20);
  view.running = {Prefilling(1, 30, 8)};
  view.running[0].barred = true;
  view.waiting = {Waiting(2, 12), Waiting(3, 16), Waiting(4, 2)};
  view.waiting[0].barred = true;
  EXPECT_THAT(Rows(Schedule(view)), ElementsAre(Row{true, 1, 16, 4}));
  view.free_slots = 1;
  EXPECT_THAT(Schedule(view).rows, IsEmpty());
}

TEST(Scheduler, WhatNeverFitsIsRefusedWithTheArithmetic) {
  EXPECT_TRUE(CheckFits(40, 4, 3, 13).ok());
  const absl::Status status = CheckFits(41, 4, 3, 13);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kTooLarge);
  EXPECT_EQ(
      status.message(),
      "pages=14: 41 tokens of 4 a page take 11 pages, the adapter 3; the group has 13: it can "
      "never fit, ask for fewer tokens");
  EXPECT_TRUE(CheckFits(40, 4, 3, 15, 2).ok());
  EXPECT_EQ(CheckFits(40, 4, 3, 14, 2).message(),
            "pages=13: 40 tokens of 4 a page take 10 pages, the adapter 3; the group has 14, 2 of "
            "them for pins: it can never fit, ask for fewer tokens");
}

}  // namespace
}  // namespace rootstock
