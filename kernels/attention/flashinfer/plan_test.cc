#include "kernels/attention/flashinfer/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace rootstock::kernels::cuda {
namespace {

AttentionBatch Batch(const std::vector<int32_t>& q_begin, const std::vector<int32_t>& kv_len) {
  AttentionBatch batch;
  batch.host.q_begin = q_begin.data();
  batch.host.kv_len = kv_len.data();
  batch.num_rows = static_cast<int>(kv_len.size());
  return batch;
}

TEST(FlashPlanTest, TilesOfRowsWithSeveralQueries) {
  // A token, 300 after 100, a pad of 5, 2 after nothing.
  const std::vector<int32_t> q_begin = {0, 1, 301, 306, 308}, kv_len = {50, 400, 0, 2};
  const std::vector<QueryTile> tiles = QueryTiles(Batch(q_begin, kv_len), 1, 128);
  std::set<std::pair<int, int>> found;
  for (const QueryTile& t : tiles) found.insert({t.row, t.tile});
  EXPECT_EQ(tiles.size(), 4u);
  EXPECT_EQ(found, (std::set<std::pair<int, int>>{{1, 0}, {1, 1}, {1, 2}, {3, 0}}));
  EXPECT_EQ(tiles[0].tile, 2);
  EXPECT_EQ(tiles[0].cost, 256 + 400);  // sees all keys
  EXPECT_EQ(tiles[1].cost, 256 + 356);
  EXPECT_EQ(tiles[3].cost, 256 + 2);
}

TEST(FlashPlanTest, QueriesOfAGroupShareTiles) {
  const std::vector<int32_t> q_begin = {0, 33}, kv_len = {33};
  const std::vector<QueryTile> tiles = QueryTiles(Batch(q_begin, kv_len), 4, 128);
  ASSERT_EQ(tiles.size(), 2u);
  EXPECT_EQ(tiles[0].cost, 256 + 33);
  EXPECT_EQ(tiles[1].cost, 256 + 32);
}

TEST(FlashPlanTest, BlocksHaveEqualCosts) {
  std::vector<QueryTile> tiles;
  for (int t = 15; t >= 0; --t) tiles.push_back({0, t, 256 + 128 * (t + 1)});
  const int heads = 32, blocks = 132;
  const std::vector<int> assigned = Assign(tiles, heads, blocks);
  ASSERT_EQ(assigned.size(), tiles.size() * heads);
  std::vector<int64_t> loads(blocks);
  int64_t total = 0;
  for (size_t i = 0; i < assigned.size(); ++i) {
    loads[assigned[i]] += tiles[i / heads].cost;
    total += tiles[i / heads].cost;
  }
  EXPECT_LT(*std::max_element(loads.begin(), loads.end()), 1.15 * total / blocks);
}

}  // namespace
}  // namespace rootstock::kernels::cuda
