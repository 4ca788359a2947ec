#include "coordinator/scheduler/page_plan.h"

#include "coordinator/scheduler/scheduler_views.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Scheduler, EvictsTheLeastRecentlyUsedAdapterBeforePreempting) {
  SchedulerView view = View(0);
  view.running = {Decoding(1, 5), Decoding(2, 6)};
  view.idle_adapters = {{.pages = 3}, {.pages = 3}};
  const Decision d = Schedule(view);
  EXPECT_THAT(d.evict, ElementsAre(0));
  EXPECT_THAT(d.preempt, IsEmpty());
  // The pages come when the drop completes: the row waits for them, its neighbour runs.
  EXPECT_THAT(Rows(d), ElementsAre(Row{false, 1, 1, 0}));
}

TEST(Scheduler, EvictsOnlyOnceForPagesThatAreComing) {
  SchedulerView view = View(0);
  view.running = {Decoding(1, 5)};
  view.idle_adapters = {{.pages = 3}};
  view.pages_coming = 1;
  EXPECT_THAT(Schedule(view).evict, IsEmpty());
}

TEST(Scheduler, AnAdapterThatAnOlderRequestWaitsForStays) {
  SchedulerView view = View(0);
  view.running = {Decoding(5, 5), Decoding(6, 6)};
  view.idle_adapters = {{.pages = 3, .wanted_by = 2}};
  const Decision d = Schedule(view);
  EXPECT_THAT(d.evict, IsEmpty());
  EXPECT_THAT(d.preempt, ElementsAre(1));
  view.idle_adapters[0].wanted_by = 9;
  EXPECT_THAT(Schedule(view).evict, ElementsAre(0));
}

TEST(Scheduler, ARunningOneMakesWayForAnOlderThatWaits) {
  SchedulerView view = View(0);
  view.running = {Decoding(5, 5)};
  view.waiting = {Waiting(2, 4)};
  view.idle_adapters = {{.pages = 3, .wanted_by = 2}};
  EXPECT_THAT(Schedule(view).preempt, ElementsAre(0));
}

TEST(Scheduler, AdaptersNobodyWaitsForGoFirst) {
  SchedulerView view = View(0);
  view.waiting = {Waiting(1, 4)};
  view.idle_adapters = {{.pages = 3, .wanted_by = 7}, {.pages = 3}};
  EXPECT_THAT(Schedule(view).evict, ElementsAre(1));
}

TEST(Scheduler, NobodyIsAdmittedWithAnAdapterThatIsBeingEvicted) {
  SchedulerView view = View(1);
  view.loads = {{.order = 2, .missing = 3}};
  view.waiting = {Waiting(4, 2)};
  view.free_for_loads = 0;
  view.idle_adapters = {{.pages = 3, .wanted_by = 4}};
  const Decision d = Schedule(view);
  EXPECT_THAT(d.evict, ElementsAre(0));
  EXPECT_THAT(d.rows, IsEmpty());
}

TEST(Scheduler, LoadsReservePagesAsTheyComeFree) {
  SchedulerView view = View(5);
  view.free_for_loads = 3;
  view.loads = {{.order = 2, .missing = 4}};
  view.waiting = {Waiting(3, 3)};
  const Decision d = Schedule(view);
  ASSERT_EQ(d.reserve.size(), 1u);
  EXPECT_EQ(d.reserve[0].pages, 3u);
  // The younger request runs on pages that the load can't use yet.
  EXPECT_THAT(Rows(d), ElementsAre(Row{true, 0, 3, 1}));
}

TEST(Scheduler, OlderRowsComeBeforeALoad) {
  SchedulerView view = View(1);
  view.running = {Decoding(1, 5)};
  view.loads = {{.order = 2, .missing = 4}};
  const Decision d = Schedule(view);
  EXPECT_EQ(d.rows.size(), 1u);
  EXPECT_THAT(d.reserve, IsEmpty());
}

TEST(Scheduler, TheOldestTakesBackWhatYoungerLoadsReserved) {
  SchedulerView view = View(0);
  view.running = {Decoding(1, 5)};
  view.loads = {{.order = 2, .reserved = 2, .missing = 1},
                {.order = 3, .reserved = 2, .missing = 1}};
  const Decision d = Schedule(view);
  EXPECT_THAT(d.unreserve, ElementsAre(1));
  EXPECT_THAT(Rows(d), ElementsAre(Row{false, 0, 1, 1}));
  ASSERT_EQ(d.reserve.size(), 1u);
  EXPECT_EQ(d.reserve[0].load, 0u);
}

TEST(Scheduler, ALoadEvictsButNeverPreempts) {
  SchedulerView view = View(0);
  view.running = {Decoding(5, 6)};
  view.loads = {{.order = 2, .missing = 4}};
  view.idle_adapters = {{.pages = 2}, {.pages = 2}, {.pages = 2}};
  const Decision d = Schedule(view);
  EXPECT_THAT(d.evict, ElementsAre(0, 1));
  EXPECT_THAT(d.preempt, IsEmpty());
}

TEST(Scheduler, AYoungRowMakesWayForAnOldLoad) {
  SchedulerView view = View(1);
  view.running = {Decoding(5, 5)};
  view.loads = {{.order = 2, .missing = 4}};
  const Decision d = Schedule(view);
  EXPECT_THAT(d.preempt, ElementsAre(0));
  ASSERT_EQ(d.reserve.size(), 1u);
  EXPECT_EQ(d.reserve[0].pages, 1u);
}

TEST(Scheduler, SparePagesComeFromIdleAdaptersThatNobodyWaitsFor) {
  SchedulerView view = View(5);
  view.spare_pages = 6;
  view.running = {Decoding(1, 5)};  // takes one
  view.idle_adapters = {{.pages = 3, .wanted_by = 2}, {.pages = 1}, {.pages = 1}, {.pages = 4}};
  Decision d = Schedule(view);
  EXPECT_THAT(d.evict, ElementsAre(1, 2));
  EXPECT_EQ(d.evict_ahead, 2u);
  view.pages_coming = 1;
  EXPECT_THAT(Schedule(view).evict, ElementsAre(1));
  view.floors = {.adapters = 500};
  EXPECT_THAT(Schedule(view).evict, IsEmpty());
  view.floors = {};
  view.loads = {{.order = 3, .missing = 7}};  // needs two of the first, which leave for it
  d = Schedule(view);
  EXPECT_THAT(d.evict, ElementsAre(1, 2, 3));
  EXPECT_EQ(d.evict_ahead, 1u);
}

TEST(Scheduler, KvEvictsAdaptersDownToTheirFloorOnly) {
  SchedulerView view = View(0);
  view.floors = {.adapters = 5};
  view.adapter_pages = 7;
  view.running = {Decoding(1, 6), Decoding(2, 5), Decoding(3, 6)};
  view.idle_adapters = {{.pages = 2}, {.pages = 2}};
  EXPECT_THAT(Schedule(view).evict, ElementsAre(0));
  view.adapter_pages = 6;  // 4 would be left
  const Decision d = Schedule(view);
  EXPECT_THAT(d.evict, IsEmpty());
  EXPECT_THAT(d.preempt, ElementsAre(2));  // its page comes from a younger one instead
  EXPECT_THAT(Rows(d), ElementsAre(Row{false, 0, 1, 0}, Row{false, 1, 1, 1}));
}

TEST(Scheduler, TheOldestKnowsNoFloor) {
  SchedulerView view = View(0);
  view.floors = {.adapters = 5};
  view.adapter_pages = 5;
  view.running = {Decoding(1, 5), Decoding(2, 6)};
  view.idle_adapters = {{.pages = 2}};
  EXPECT_THAT(Schedule(view).evict, ElementsAre(0));
  view.running.clear();
  view.waiting = {Waiting(3, 4)};
  EXPECT_THAT(Schedule(view).evict, ElementsAre(0));
  view.loads = {{.order = 2, .missing = 1}};  // now that is
  view.free_pages = view.free_for_loads = 1;
  EXPECT_THAT(Schedule(view).evict, IsEmpty());
}

TEST(Scheduler, ALoadLeavesKvItsFloor) {
  SchedulerView view = View(6);
  view.floors = {.kv = 4};
  view.usable_pages = 12;
  view.adapter_pages = 5;
  view.running = {Decoding(1, 4)};
  view.loads = {{.order = 2, .missing = 4}};
  EXPECT_THAT(Schedule(view).reserve, IsEmpty());  // 9 of 12 would leave 3
  view.idle_adapters = {{.pages = 1}, {.pages = 1}};
  Decision d = Schedule(view);
  EXPECT_THAT(d.evict, ElementsAre(0));  // though pages are free
  ASSERT_EQ(d.reserve.size(), 1u);
  EXPECT_EQ(d.reserve[0].pages, 4u);
  view.loads[0].missing = 6;  // both would not do: neither goes for nothing
  d = Schedule(view);
  EXPECT_THAT(d.evict, IsEmpty());
  EXPECT_THAT(d.reserve, IsEmpty());
  view.running.clear();  // it is the oldest
  d = Schedule(view);
  ASSERT_EQ(d.reserve.size(), 1u);
  EXPECT_EQ(d.reserve[0].pages, 6u);
}

TEST(Scheduler, H7ALoadHeldUpByTheFloorStopsNeitherYoungerRowsNorYoungerLoads) {
  SchedulerView view = View(6);
  view.floors = {.kv = 4};
  view.usable_pages = 12;
  view.adapter_pages = 5;
  view.running = {Decoding(1, 4)};
  view.loads = {{.order = 2, .missing = 5}, {.order = 4, .missing = 3}};
  view.waiting = {Waiting(3, 4)};
  const Decision d = Schedule(view);
  EXPECT_EQ(d.rows.size(), 2u);
  ASSERT_EQ(d.reserve.size(), 1u);
  EXPECT_EQ(d.reserve[0].load, 1u);
}

}  // namespace
}  // namespace rootstock
