#include "coordinator/engine/residency/group_adapters.h"

#include "gtest/gtest.h"

namespace rootstock {
namespace {

Digest Content(int i) { return Sha256Of("content " + std::to_string(i)); }

class GroupAdaptersTest : public testing::Test {
 protected:
  AdapterPort Port() {
    return {.send =
                [this](decltype(Command::kind) kind) {
                  sent_.push_back(std::move(kind));
                  return CommandId(sent_.size());
                },
            .has_name = [](const Digest&) { return true; },
            .clock = [this] { return now_; },
            .eviction = policy_,
            .page_bytes = 4096};
  }
  void Adopt(GroupAdapters& adapters, int number, uint32_t pages = 1) {
    ResidentAdapter found{Content(number), 7, {}};
    for (uint32_t i = 0; i < pages; ++i) found.pages.push_back(PageId(next_page_++));
    ASSERT_TRUE(pages_.Adopt(found.pages));
    adapters.Adopt(found, {7, pages});
  }

  EvictionPolicy policy_ = EvictionPolicy::kLru;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  PageAllocator pages_{30000};
  uint32_t next_page_ = 1;
  std::vector<decltype(Command::kind)> sent_;
};

// What it costs a step is bounded, whatever is resident, queued or known.
TEST_F(GroupAdaptersTest, TenThousandAdaptersCostAStepNoMoreThanAHundred) {
  const auto looked_at = [this](int adapters) {
    GroupAdapters group(pages_, Port());
    for (int i = 0; i < adapters; ++i) Adopt(group, next_page_);
    for (int i = 0; i < adapters; ++i) {
      group.Want(Content(-1 - i), {7, 1}, static_cast<Order>(i));
    }
    // Half of what is queued has come.
    const size_t fetches = sent_.size();
    for (size_t i = 0; i < fetches / 2; ++i) {
      Completion done{CommandId(i + 1), absl::OkStatus(), {}};
      done.source = FetchSource::kDisk;
      group.Completed(done);
    }
    const uint64_t before = group.looked_at();
    for (int step = 0; step < 10; ++step) {
      SchedulerView view;
      group.FillView(view);
      EXPECT_LE(view.idle_adapters.size() + view.loads.size(), 80u);
    }
    sent_.clear();
    return group.looked_at() - before;
  };
  const uint64_t few = looked_at(100);
  EXPECT_GT(few, 0u);
  EXPECT_EQ(looked_at(10000), few);
}

// FAULTS I4: what came and left costs no memory.
TEST_F(GroupAdaptersTest, I4OnlyWhatIsThereOrWantedIsKnown) {
  GroupAdapters group(pages_, Port());
  const auto complete = [&](FetchSource source = FetchSource::kNone) {
    Completion done{CommandId(sent_.size()), absl::OkStatus(), {}};
    done.source = source;
    group.Completed(done);
  };
  for (int i = 0; i < 1000; ++i) {
    group.Want(Content(i), {7, 1}, 1);
    if (i % 3 == 0) {  // nobody waits any more when it has come
      group.Unwant(Content(i), 1);
      complete(FetchSource::kDisk);
      continue;
    }
    complete(FetchSource::kDisk);
    SchedulerView view;
    group.FillView(view);
    group.Reserve(0, 1);
    complete();  // the Load
    group.Unwant(Content(i), 1);
    ASSERT_EQ(group.num_known(), 1u);
    if (i % 3 == 1) {
      group.Unload(Content(i), nullptr);
    } else {
      group.FillView(view);
      group.Evict(0);
    }
    complete();  // the Drop
  }
  EXPECT_EQ(group.num_known(), 0u);
  EXPECT_EQ(pages_.adapter_pages(), 0u);
  EXPECT_EQ(group.nodes().List().size(), 1000u);  // as the nodes say, who evict within budgets
}

// While adapters come and go, for two loads like the last; a large one does not cost all small ones
// their place.
TEST_F(GroupAdaptersTest, PagesAreSparedForTheNextLoadsButNotAllOfTheIdleOnes) {
  GroupAdapters group(pages_, Port());
  for (int i = 0; i < 60; ++i) Adopt(group, i, /*pages=*/2);
  SchedulerView view;
  const auto load = [&](int number, uint32_t pages) {
    group.Want(Content(number), {7, pages}, 1);
    Completion done{CommandId(sent_.size()), absl::OkStatus(), {}};
    done.source = FetchSource::kDisk;
    group.Completed(done);
    view = {};
    group.FillView(view);
    group.Reserve(0, pages);
    group.Completed({CommandId(sent_.size()), absl::OkStatus(), {}});
    view = {};
    group.FillView(view);
    return view.spare_pages;
  };
  EXPECT_EQ(load(100, 3), 0u) << "none has had to leave";
  group.Evict(0);
  group.Completed({CommandId(sent_.size()), absl::OkStatus(), {}});
  EXPECT_EQ(load(101, 4), 8u);
  EXPECT_EQ(load(102, 60), 59u * 2 / 4);
}

TEST_F(GroupAdaptersTest, LeastFrequentlyUsedLeaveFirst) {
  policy_ = EvictionPolicy::kLfu;
  GroupAdapters group(pages_, Port());
  for (int i = 0; i < 3; ++i) Adopt(group, i, /*pages=*/static_cast<uint32_t>(i + 1));
  const auto use = [&](int i) {
    group.Want(Content(i), {7, 1}, 1);
    group.Use(Content(i));
    group.Unwant(Content(i), 1);
    group.Unuse(Content(i), CommandId(0));
  };
  for (const int i : {0, 0, 0, 2, 2, 1}) use(i);
  SchedulerView view;
  group.FillView(view);
  ASSERT_EQ(view.idle_adapters.size(), 3u);
  EXPECT_EQ(view.idle_adapters[0].pages, 2u);
  EXPECT_EQ(view.idle_adapters[1].pages, 3u);
  EXPECT_EQ(view.idle_adapters[2].pages, 1u);
}

TEST_F(GroupAdaptersTest, ByCostThoseThatTheHostStillHasLeaveFirst) {
  policy_ = EvictionPolicy::kCost;
  GroupAdapters group(pages_, Port());
  group.Report({{Content(1), Tier::kHost, 4096}, {Content(2), Tier::kDisk, 4096}});
  for (int i = 0; i < 3; ++i) Adopt(group, i, /*pages=*/static_cast<uint32_t>(i + 1));
  for (int i = 0; i < 3; ++i) {
    group.Use(Content(i));
    group.Unuse(Content(i), CommandId(0));
  }
  SchedulerView view;
  group.FillView(view);
  ASSERT_EQ(view.idle_adapters.size(), 3u);
  EXPECT_EQ(view.idle_adapters[0].pages, 2u);  // host
  EXPECT_EQ(view.idle_adapters[1].pages, 3u);  // disk
  EXPECT_EQ(view.idle_adapters[2].pages, 1u);  // nowhere near
}

}  // namespace
}  // namespace rootstock
