#include "worker/memory/host_cache.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "common/base/status.h"
#include "worker/device/cpu_copy_lane.h"

namespace rootstock {
namespace {

constexpr uint32_t kPage = 4096;

class HostCacheTest : public testing::Test {
 protected:
  static HostImageKey Key(const std::string& name, uint64_t layout_id = 1) {
    return {Sha256Of(name), layout_id};
  }
  bool Put(const std::string& name, uint32_t pages, bool wanted = false, uint64_t layout_id = 1) {
    const auto image = cache_.Reserve(pages);
    if (!image.ok()) return false;
    cache_.Insert(Key(name, layout_id), *image, wanted);
    return true;
  }
  bool Has(const std::string& name) {
    for (const HostChange& there : cache_.List()) {
      if (there.digest == Sha256Of(name)) return true;
    }
    return false;
  }

  CpuCopyLane lane_;
  HostCache cache_{*HostBlocks::Create(lane_, kPage, 8 * kPage + 100)};
};

// Gives out memory side by side, as cudaHostAlloc may. Nothing touches it.
class NeighboursLane : public CpuCopyLane {
 public:
  absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes, const std::string&) override {
    std::byte* const data = next_;
    next_ += bytes;
    ends_.insert(next_);
    return DeviceBuffer(data, bytes, [](void*, size_t) {});
  }
  const std::set<std::byte*>& ends() const { return ends_; }

 private:
  std::byte* next_ = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
  std::set<std::byte*> ends_;
};

TEST(HostBlocksTest, BlocksOfTwoAllocationsAreNoNeighbours) {
  constexpr uint32_t kBlock = 64 << 20;
  NeighboursLane lane;
  const auto blocks = *HostBlocks::Create(lane, kBlock, uint64_t{10} * kBlock);
  ASSERT_EQ(lane.ends().size(), 3u);
  const std::vector<std::byte*> taken = blocks->Take(10);
  ASSERT_EQ(taken.size(), 10u);
  for (std::byte* const block : taken) EXPECT_FALSE(lane.ends().contains(block + kBlock));
}

TEST_F(HostCacheTest, TheLeastRecentlyUsedGoes) {
  EXPECT_TRUE(Put("a", 3));
  EXPECT_TRUE(Put("b", 3));
  EXPECT_NE(cache_.Find(Key("a"), false), nullptr);
  EXPECT_TRUE(Put("c", 4));
  EXPECT_TRUE(Has("a"));
  EXPECT_FALSE(Has("b"));
  EXPECT_EQ(cache_.used_bytes(), 7u * kPage);
  EXPECT_EQ(cache_.Find(Key("b"), false), nullptr);
  EXPECT_EQ(cache_.Find(Key("a", 2), false), nullptr);
}

TEST_F(HostCacheTest, WhatIsHeldOrPinnedStays) {
  EXPECT_TRUE(Put("held", 3));
  EXPECT_TRUE(Put("pinned", 3));
  auto held = cache_.Find(Key("held"), false);
  cache_.Pin(Sha256Of("pinned"), true);
  EXPECT_FALSE(Put("c", 3));
  const auto refused = cache_.Reserve(3).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(refused)->field, "host-cache-bytes");
  held = nullptr;
  EXPECT_TRUE(Put("c", 3));
  EXPECT_FALSE(Has("held"));
  cache_.Pin(Sha256Of("pinned"), false);
  EXPECT_TRUE(Put("d", 5));
  EXPECT_FALSE(Has("pinned"));
}

TEST_F(HostCacheTest, WhatWasFetchedForALoadGoesLast) {
  EXPECT_TRUE(Put("wanted", 4, /*wanted=*/true));
  EXPECT_TRUE(Put("b", 4));
  EXPECT_TRUE(Put("c", 4));
  EXPECT_TRUE(Has("wanted"));
  EXPECT_FALSE(Has("b"));
  EXPECT_NE(cache_.Find(Key("wanted"), /*for_load=*/true), nullptr);
  EXPECT_NE(cache_.Find(Key("c"), false), nullptr);
  EXPECT_TRUE(Put("d", 4));
  EXPECT_FALSE(Has("wanted"));
  EXPECT_TRUE(Put("e", 8, /*wanted=*/true));
  EXPECT_TRUE(Put("f", 8));  // rather than nothing
  EXPECT_FALSE(Has("e"));
}

TEST_F(HostCacheTest, MoreThanThereIsEvictsNothing) {
  EXPECT_TRUE(Put("a", 3));
  EXPECT_FALSE(Put("b", 9));
  EXPECT_TRUE(Has("a"));
}

TEST_F(HostCacheTest, DropFreesEveryImageOfADigestWhenItIsLetGo) {
  EXPECT_TRUE(Put("a", 2, false, 1));
  EXPECT_TRUE(Put("a", 3, false, 2));
  cache_.Pin(Sha256Of("a"), true);
  auto held = cache_.Find(Key("a", 2), false);
  held->pages()[0][0] = std::byte{7};
  EXPECT_EQ(cache_.Drop(Sha256Of("a")), 5u * kPage);
  EXPECT_EQ(cache_.used_bytes(), 0u);
  EXPECT_TRUE(Put("b", 5));
  EXPECT_FALSE(Put("c", 6));  // b goes, the held three pages are taken
  EXPECT_EQ(held->pages()[0][0], std::byte{7});
  held = nullptr;
  EXPECT_TRUE(Put("c", 6));
  EXPECT_EQ(cache_.Drop(Sha256Of("a")), 0u);
}

TEST_F(HostCacheTest, TellsWhatCameAndWent) {
  Put("a", 4);
  Put("a", 2, false, 2);
  auto changes = cache_.TakeChanges();
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].bytes, 6u * kPage);
  EXPECT_TRUE(changes[0].present);
  EXPECT_TRUE(cache_.TakeChanges().empty());
  Put("b", 8);
  changes = cache_.TakeChanges();
  ASSERT_EQ(changes.size(), 2u);
  for (const HostChange& change : changes) {
    EXPECT_EQ(change.present, change.digest == Sha256Of("b"));
  }
}

TEST_F(HostCacheTest, ImagesOutliveTheCache) {
  auto cache = std::make_unique<HostCache>(*HostBlocks::Create(lane_, kPage, 2 * kPage));
  const auto image = *cache->Reserve(2);
  cache->Insert(Key("a"), image, false);
  cache = nullptr;
  image->pages()[1][kPage - 1] = std::byte{1};
  const auto loose = HostImage::Loose(3, kPage);
  EXPECT_FALSE(loose->in_cache());
  loose->pages()[2][kPage - 1] = std::byte{1};
}

}  // namespace
}  // namespace rootstock
