#include "coordinator/memory/page_allocator.h"

#include <map>
#include <random>
#include <set>

#include "gtest/gtest.h"

namespace rootstock {
namespace {

TEST(PageAllocator, NeverGivesPageZero) {
  PageAllocator pages(5);
  const auto all = pages.TakeKv(4);
  ASSERT_TRUE(all.has_value());
  EXPECT_FALSE(pages.TakeKv(1).has_value());
  for (const PageId id : *all) EXPECT_NE(id.value, 0u);
  EXPECT_EQ(std::set<PageId>(all->begin(), all->end()).size(), 4u);
}

TEST(PageAllocator, AllOrNothing) {
  PageAllocator pages(4);
  EXPECT_FALSE(pages.TakeKv(4).has_value());
  EXPECT_EQ(pages.free_pages(), 3u);
}

TEST(PageAllocator, AStepTakesAPageOfAnUnfinishedStepALoadWaits) {
  PageAllocator pages(3);
  const auto kv = pages.TakeKv(2);
  pages.ReleaseKv(*kv, CommandId(7));
  EXPECT_EQ(pages.free_pages(), 2u);
  EXPECT_EQ(pages.free_for_loads(), 0u);
  EXPECT_TRUE(pages.TakeForAdapter(2).empty());
  const auto again = pages.TakeKv(1);
  ASSERT_TRUE(again.has_value());
  // Given back without having been named: still waits for step 7.
  pages.ReleaseKv(*again, CommandId(0));
  EXPECT_EQ(pages.free_for_loads(), 0u);
  pages.StepCompleted(CommandId(6));
  EXPECT_EQ(pages.free_for_loads(), 0u);
  pages.StepCompleted(CommandId(7));
  EXPECT_EQ(pages.TakeForAdapter(2).size(), 2u);
}

TEST(PageAllocator, KvPrefersPagesThatLoadsCannotUse) {
  PageAllocator pages(5);
  const auto kv = pages.TakeKv(2);
  pages.ReleaseKv(*kv, CommandId(1));
  ASSERT_TRUE(pages.TakeKv(2).has_value());
  EXPECT_EQ(pages.free_for_loads(), 2u);
}

TEST(PageAllocator, SharedPromptPagesAreFreeWithTheirLastReader) {
  PageAllocator pages(3);
  const auto kv = pages.TakeKv(1);
  pages.Share(kv->front());
  pages.ReleaseKv(*kv, CommandId(3));
  EXPECT_EQ(pages.kv_pages(), 1u);
  // The other reader was last named by an earlier step: the later one counts.
  pages.ReleaseKv(*kv, CommandId(2));
  EXPECT_EQ(pages.kv_pages(), 0u);
  pages.StepCompleted(CommandId(2));
  EXPECT_EQ(pages.free_for_loads(), 1u);
  pages.StepCompleted(CommandId(3));
  EXPECT_EQ(pages.free_for_loads(), 2u);
}

TEST(PageAllocator, AdoptRefusesNonsenseAndTakesNothing) {
  PageAllocator pages(6);
  const std::vector<PageId> zero = {PageId(0)}, far = {PageId(6)}, twice = {PageId(2), PageId(2)};
  const std::vector<PageId> good = {PageId(2), PageId(5)}, taken = {PageId(3), PageId(5)};
  EXPECT_FALSE(pages.Adopt(zero));
  EXPECT_FALSE(pages.Adopt(far));
  EXPECT_FALSE(pages.Adopt(twice));
  EXPECT_TRUE(pages.Adopt(good));
  EXPECT_FALSE(pages.Adopt(taken));
  EXPECT_EQ(pages.adapter_pages(), 2u);
  EXPECT_EQ(pages.free_pages(), 3u);
  pages.ReleaseAdapter(good);
  EXPECT_EQ(pages.free_for_loads(), 5u);
}

// A plain model beside the allocator: who holds what, and up to which step a page is named.
class Model {
 public:
  explicit Model(uint32_t n, uint32_t seed) : pages_(n), n_(n), random_(seed) {}

  void RandomOperation() {
    switch (random_() % 7) {
      case 0:
        TakeKv();
        break;
      case 1:
        TakeAdapter();
        break;
      case 2:
        ShareOne();
        break;
      case 3:
      case 4:
        ReleaseOne();
        break;
      case 5:
        ++sent_;
        break;
      default:
        if (completed_ < sent_) pages_.StepCompleted(CommandId(++completed_));
    }
    Check();
  }

  void ReleaseAll() {
    while (!holds_.empty()) ReleaseOne();
    pages_.StepCompleted(CommandId(sent_));
    EXPECT_EQ(pages_.free_for_loads(), n_ - 1);
  }

 private:
  struct Hold {
    bool kv;
    std::vector<PageId> pages;
  };

  void TakeKv() {
    const uint32_t want = random_() % 5;
    const uint32_t free = pages_.free_pages();
    auto got = pages_.TakeKv(want);
    ASSERT_EQ(got.has_value(), want <= free);
    if (!got) return;
    for (const PageId id : *got) {
      ASSERT_EQ(readers_[id], 0);
      readers_[id] = 1;
    }
    holds_.push_back({true, *got});
  }
  void TakeAdapter() {
    std::vector<PageId> got = pages_.TakeForAdapter(random_() % 5);
    for (const PageId id : got) {
      ASSERT_EQ(readers_[id], 0);
      ASSERT_LE(named_[id], completed_);
      readers_[id] = 1;
    }
    holds_.push_back({false, got});
  }
  void ShareOne() {
    if (holds_.empty()) return;
    const Hold hold = holds_[random_() % holds_.size()];
    if (!hold.kv) return;
    for (const PageId id : hold.pages) {
      pages_.Share(id);
      ++readers_[id];
    }
    holds_.push_back(hold);
  }
  void ReleaseOne() {
    if (holds_.empty()) return;
    const size_t at = random_() % holds_.size();
    const Hold hold = holds_[at];
    holds_.erase(holds_.begin() + static_cast<long>(at));
    const uint64_t step = sent_ == 0 ? 0 : sent_ - random_() % std::min<uint64_t>(sent_, 2);
    for (const PageId id : hold.pages) {
      --readers_[id];
      if (hold.kv) named_[id] = std::max(named_[id], step);
    }
    if (hold.kv) {
      pages_.ReleaseKv(hold.pages, CommandId(step));
    } else {
      pages_.ReleaseAdapter(hold.pages);
    }
  }
  void Check() {
    uint32_t clean = 0, free = 0;
    for (uint32_t i = 1; i < n_; ++i) {
      if (readers_[PageId(i)] > 0) continue;
      ++free;
      clean += named_[PageId(i)] <= completed_;
    }
    ASSERT_EQ(pages_.free_pages(), free);
    ASSERT_EQ(pages_.free_for_loads(), clean);
    ASSERT_EQ(pages_.kv_pages() + pages_.adapter_pages() + free, n_ - 1);
  }

  PageAllocator pages_;
  uint32_t n_;
  std::mt19937 random_;
  std::vector<Hold> holds_;
  std::map<PageId, int> readers_;
  std::map<PageId, uint64_t> named_;
  uint64_t sent_ = 0, completed_ = 0;
};

TEST(PageAllocator, AgreesWithAPlainModelOverRandomOperations) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Model model(2 + seed * 3, seed);
    for (int i = 0; i < 1000 && !testing::Test::HasFatalFailure(); ++i) model.RandomOperation();
    model.ReleaseAll();
  }
}

}  // namespace
}  // namespace rootstock
