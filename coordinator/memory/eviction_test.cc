#include "coordinator/memory/eviction.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace rootstock {
namespace {

constexpr uint64_t kMiB = 1 << 20;

struct Candidate {
  const char* name;
  EvictionFacts facts;
};

// Names in the order in which they would leave.
std::string Order(EvictionPolicy policy, std::vector<Candidate> all) {
  std::stable_sort(all.begin(), all.end(), [&](const Candidate& a, const Candidate& b) {
    return KeepScore(policy, a.facts) < KeepScore(policy, b.facts);
  });
  std::string out;
  for (const Candidate& c : all) out += c.name;
  return out;
}

TEST(Eviction, Names) {
  EXPECT_EQ(ParseEvictionPolicy("lru"), EvictionPolicy::kLru);
  EXPECT_EQ(ParseEvictionPolicy("lfu"), EvictionPolicy::kLfu);
  EXPECT_EQ(ParseEvictionPolicy("cost"), EvictionPolicy::kCost);
  EXPECT_EQ(ParseEvictionPolicy("LRU"), std::nullopt);
}

TEST(Eviction, PoliciesDisagreeAsTheyShould) {
  const Candidate old_busy = {"a", {100, 50, 10 * kMiB, RefetchFrom::kHost}};
  const Candidate new_rare = {"b", {130, 1, 10 * kMiB, RefetchFrom::kHost}};
  const Candidate old_far = {"c", {90, 1, 10 * kMiB, RefetchFrom::kRemote}};
  const Candidate big = {"d", {120, 1, 500 * kMiB, RefetchFrom::kHost}};
  const std::vector<Candidate> all = {old_busy, new_rare, old_far, big};
  EXPECT_EQ(Order(EvictionPolicy::kLru, all), "cadb");
  EXPECT_EQ(Order(EvictionPolicy::kLfu, all), "cdba");
  EXPECT_EQ(Order(EvictionPolicy::kCost, all), "bdac");
}

TEST(Eviction, CostIsTheRefetchTimeOfTheBytesTimesProbability) {
  const auto score = [](double uses, uint64_t bytes, RefetchFrom from) {
    return KeepScore(EvictionPolicy::kCost, {10, uses, bytes, from});
  };
  const double base = score(2, kMiB, RefetchFrom::kDisk);
  EXPECT_GT(score(3, kMiB, RefetchFrom::kDisk), base);
  EXPECT_GT(score(2, 2 * kMiB, RefetchFrom::kDisk), base);
  EXPECT_GT(score(2, kMiB, RefetchFrom::kRemote), base);
  EXPECT_LT(score(2, kMiB, RefetchFrom::kHost), base);
  // Twice as likely and half as long to fetch weigh the same.
  const double seconds = RefetchSeconds(kMiB, RefetchFrom::kDisk);
  EXPECT_NEAR(score(2, kMiB, RefetchFrom::kDisk) - KeepScore(EvictionPolicy::kLfu, {10, 2, 0}),
              std::log2(seconds), 1e-9);
}

TEST(Eviction, UsesAgeSoThatYesterdaysFavouriteLeaves) {
  EvictionFacts favourite, newcomer;
  for (int i = 0; i < 64; ++i) favourite = UsedAgain(favourite, 0);
  EXPECT_EQ(favourite.uses, 64);
  newcomer = UsedAgain(newcomer, 5 * kUseHalfLife);
  newcomer = UsedAgain(newcomer, 5 * kUseHalfLife);
  // 64 / 2^5 is the newcomer's 2.
  EXPECT_DOUBLE_EQ(KeepScore(EvictionPolicy::kLfu, favourite),
                   KeepScore(EvictionPolicy::kLfu, newcomer));
  newcomer = UsedAgain(newcomer, 5 * kUseHalfLife);
  EXPECT_GT(KeepScore(EvictionPolicy::kLfu, newcomer), KeepScore(EvictionPolicy::kLfu, favourite));
}

TEST(Eviction, TouchingWithoutAnotherUseKeepsTheRateAndTheRank) {
  const EvictionFacts used = UsedAgain({}, 100);
  const EvictionFacts touched = Touched(used, 400);
  EXPECT_DOUBLE_EQ(touched.uses, 0.5);
  EXPECT_DOUBLE_EQ(KeepScore(EvictionPolicy::kLfu, used), KeepScore(EvictionPolicy::kLfu, touched));
  EXPECT_GT(KeepScore(EvictionPolicy::kLru, touched), KeepScore(EvictionPolicy::kLru, used));
}

}  // namespace
}  // namespace rootstock
