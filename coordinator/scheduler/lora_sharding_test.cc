#include "coordinator/scheduler/lora_sharding.h"

#include <gtest/gtest.h>

namespace rootstock {
namespace {

constexpr auto kReplicated = LoraSharding::kReplicated;
constexpr auto kSharded = LoraSharding::kFullySharded;

struct Case {
  const char* name;
  ShardingFacts facts;
  LoraSharding want;
};

TEST(LoraSharding, Table) {
  const Case cases[] = {
      {"one rank has nothing to shard", {256, 1, 40, 30, 100, 0}, kReplicated},
      {"nothing is saved", {16, 2, 10, 10, 100, 0}, kReplicated},
      {"nothing is saved, by rounding", {16, 2, 10, 11, 100, 0}, kReplicated},
      {"room enough", {16, 4, 10, 5, 1000, 900}, kReplicated},
      {"a large share of the pool", {16, 4, 126, 60, 1000, 1000}, kSharded},
      {"an eighth is not large", {16, 4, 125, 60, 1000, 1000}, kReplicated},
      {"large goes before a low lora_rank", {1, 4, 126, 60, 1000, 1000}, kSharded},
      {"pressure", {16, 4, 10, 5, 1000, 250}, kSharded},
      {"pressure by its own pages", {16, 4, 10, 5, 1000, 260}, kSharded},
      {"just enough left", {16, 4, 10, 5, 1000, 261}, kReplicated},
      {"no free page", {16, 4, 10, 5, 1000, 0}, kSharded},
      {"pressure, but a piece is one component", {7, 4, 10, 5, 1000, 0}, kReplicated},
      {"two components a piece", {8, 4, 10, 5, 1000, 0}, kSharded},
      {"lora_rank that tp_size does not divide", {17, 8, 10, 5, 1000, 0}, kSharded},
      {"lora_rank below tp_size", {3, 8, 10, 5, 1000, 0}, kReplicated},
      {"pressure, but little is saved", {16, 4, 10, 9, 1000, 0}, kReplicated},
      {"a fifth is saved", {16, 4, 10, 8, 1000, 0}, kSharded},
      {"huge pools don't overflow", {16, 4, 1u << 31, 1u << 29, 4000000000u, 0}, kSharded},
  };
  for (const Case& c : cases) EXPECT_EQ(ChooseLoraSharding(c.facts), c.want) << c.name;
}

// What was accepted for an empty pool with replicated pages is never asked for more.
TEST(LoraSharding, MorePressureNeverTurnsBackToReplicated) {
  for (const uint32_t replicated : {1u, 4u, 12u, 13u, 40u, 100u}) {
    for (const uint32_t sharded : {1u, 3u, 12u, 30u}) {
      for (const int lora_rank : {1, 4, 8, 64}) {
        bool was_sharded = false;
        for (uint32_t free = 101; free-- > 0;) {
          const bool now = ChooseLoraSharding({lora_rank, 4, replicated, sharded, 100, free}) ==
                           LoraSharding::kFullySharded;
          EXPECT_FALSE(was_sharded && !now) << replicated << " " << sharded << " " << free;
          was_sharded = now;
        }
      }
    }
  }
}

TEST(LoraSharding, Names) {
  EXPECT_EQ(ParseLoraShardingPolicy("replicated"), LoraShardingPolicy::kReplicated);
  EXPECT_EQ(ParseLoraShardingPolicy("fully-sharded"), LoraShardingPolicy::kFullySharded);
  EXPECT_EQ(ParseLoraShardingPolicy("auto"), LoraShardingPolicy::kAuto);
  EXPECT_FALSE(ParseLoraShardingPolicy("half").has_value());
}

}  // namespace
}  // namespace rootstock
