// Random lives of requests, adapters, uploads, groups and the coordinator: no contract broken,
// every stream exact, every page accounted for after every operation.
#include <numeric>

#include "coordinator/engine/testing/random_life.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

// 10^5 operations, but fewer where each takes many times as long.
#ifdef __SANITIZE_ADDRESS__
constexpr uint32_t kLives = 8;
#else
constexpr uint32_t kLives = 42;
#endif
constexpr uint64_t kOperations = 2400;  // of a life

TEST(EngineProperty, EveryStreamIsExactAndEveryPageComesBack) {
  int completed = 0;
  uint64_t loads = 0, sharded = 0, drops = 0, eager = 0, refused = 0, pins = 0;
  double evicted = 0;
  RandomLife::Counts done{};
  for (uint32_t seed = 1; seed <= kLives && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    RandomLife life(seed);
    life.Run(kOperations);
    life.FinishAndCheck();
    completed += life.completed();
    for (size_t i = 0; i < done.size(); ++i) done[i] += life.done()[i];
    evicted += life.world().Metric("adapter_evictions_total{reason=\"pressure\",tier=\"device\"}");
    for (const auto& [name, group] : life.world().groups) {
      loads += group->loads;
      sharded += group->sharded_loads;
      drops += group->drops;
      eager += group->eager_plans;
      refused += group->refused_plans;
      pins += group->pins;
    }
  }
  for (size_t i = 0; i < done.size(); ++i) {
    const std::string name = RandomLife::NameOf(static_cast<RandomLife::What>(i));
    RecordProperty(name, static_cast<int>(done[i]));
    EXPECT_GT(done[i], 12 * kLives) << name;
  }
  EXPECT_GE(std::accumulate(done.begin(), done.end(), uint64_t{0}), kOperations * kLives);
  // The lives were eventful.
  EXPECT_GT(completed, 358 * int{kLives});
  EXPECT_GT(evicted, 24 * kLives);
  EXPECT_GT(loads, 191 * kLives);
  EXPECT_GT(drops, 358 * kLives);
  EXPECT_GT(sharded, 29 * kLives);
  EXPECT_GT(eager, 191 * kLives);
  EXPECT_GT(refused, 8 * kLives);
  EXPECT_GT(pins, 72 * kLives);
}

}  // namespace
}  // namespace rootstock
