#include "coordinator/engine/residency/fetch_window.h"

#include <list>

#include "coordinator/engine/residency/node_tiers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class FetchWindowTest : public testing::Test {
 protected:
  ResidencyEntry* Make(Order order, uint64_t bytes) {
    ResidencyEntry& entry = entries_.emplace_back();
    entry.waiting = {order};
    entry.facts.bytes = bytes;
    window_.Queue(entry);
    return &entry;
  }
  // What goes out, in order.
  std::vector<ResidencyEntry*> Send() {
    std::vector<ResidencyEntry*> out;
    while (ResidencyEntry* entry = window_.Next()) {
      window_.Started(*entry, now_);
      out.push_back(entry);
    }
    return out;
  }

  std::list<ResidencyEntry> entries_;
  FetchWindow window_{100};
  absl::Time now_ = absl::FromUnixSeconds(50);
};

TEST_F(FetchWindowTest, SendsInQueueOrderWithinItsBytes) {
  auto* third = Make(3, 10);
  auto* first = Make(1, 60);
  auto* second = Make(2, 40);
  EXPECT_THAT(Send(), ElementsAre(first, second));
  EXPECT_EQ(window_.bytes(), 100u);
  window_.Arrived(*second);  // it waits for its pages: no room is made
  EXPECT_THAT(Send(), IsEmpty());
  window_.Left(*second);
  EXPECT_THAT(Send(), ElementsAre(third));
}

TEST_F(FetchWindowTest, AnOlderRequestMovesItsAdapterForward) {
  auto* big = Make(1, 100);
  EXPECT_THAT(Send(), ElementsAre(big));
  auto* b = Make(5, 10);
  auto* a = Make(6, 10);
  a->waiting.insert(4);
  window_.Requeue(*a);
  window_.Unqueue(*b);
  window_.Queue(*b);
  window_.Left(*big);
  EXPECT_THAT(Send(), ElementsAre(a, b));
}

TEST_F(FetchWindowTest, OneLargerThanTheWindowGoesAlone) {
  auto* small = Make(1, 10);
  auto* huge = Make(2, 1000);
  auto* other = Make(3, 10);
  EXPECT_THAT(Send(), ElementsAre(small));
  window_.Left(*small);
  EXPECT_THAT(Send(), ElementsAre(huge));
  window_.Left(*huge);
  EXPECT_THAT(Send(), ElementsAre(other));
}

TEST_F(FetchWindowTest, ASlowFetchNoLongerFillsIt) {
  auto* slow = Make(1, 90);
  auto* next = Make(2, 50);
  EXPECT_THAT(Send(), ElementsAre(slow));
  now_ += FetchWindow::kSlowFetch - absl::Milliseconds(1);
  EXPECT_THAT(window_.FindSlow(now_), IsEmpty());
  now_ += absl::Milliseconds(1);
  EXPECT_THAT(window_.FindSlow(now_), ElementsAre(slow));
  EXPECT_THAT(window_.FindSlow(now_), IsEmpty());  // told once
  EXPECT_THAT(Send(), ElementsAre(next));
  EXPECT_EQ(window_.bytes(), 50u);
  window_.Arrived(*slow);  // its content is there now
  EXPECT_EQ(window_.bytes(), 140u);
  window_.Left(*slow);
  window_.Left(*next);
  EXPECT_EQ(window_.bytes(), 0u);
}

TEST(NodeTiers, CountsWhatIsHeldOnEachTier) {
  NodeTiers tiers;
  const Digest a = Sha256Of("a"), b = Sha256Of("b");
  EXPECT_TRUE(tiers.Apply({{a, Tier::kDisk, 10}, true}));
  EXPECT_TRUE(tiers.Apply({{a, Tier::kHost, 16}, true}));
  EXPECT_TRUE(tiers.Apply({{b, Tier::kDisk, 5}, true}));
  EXPECT_FALSE(tiers.Apply({{b, Tier::kDisk, 6}, true}));  // no news but for its size
  EXPECT_EQ(tiers.Of(Tier::kDisk).adapters, 2u);
  EXPECT_EQ(tiers.Of(Tier::kDisk).bytes, 16u);
  EXPECT_EQ(tiers.Of(Tier::kHost).bytes, 16u);
  EXPECT_EQ(tiers.FromOf(a), RefetchFrom::kHost);
  EXPECT_EQ(tiers.FromOf(b), RefetchFrom::kDisk);
  EXPECT_EQ(tiers.List().size(), 3u);
  EXPECT_TRUE(tiers.Apply({{a, Tier::kHost, 0}, false}));
  EXPECT_EQ(tiers.FromOf(a), RefetchFrom::kDisk);
  EXPECT_TRUE(tiers.Apply({{a, Tier::kDisk, 0}, false}));
  EXPECT_FALSE(tiers.Apply({{a, Tier::kDisk, 0}, false}));
  EXPECT_EQ(tiers.FromOf(a), RefetchFrom::kRemote);
  EXPECT_EQ(tiers.Of(Tier::kDisk).bytes, 6u);
  EXPECT_EQ(tiers.Of(Tier::kHost).adapters, 0u);
  EXPECT_EQ(tiers.List().size(), 1u);
}

}  // namespace
}  // namespace rootstock
