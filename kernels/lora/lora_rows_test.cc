#include "kernels/lora/lora_rows.h"

#include <gtest/gtest.h>

#include <vector>

namespace rootstock::kernels::cuda {
namespace {

struct Filled {
  std::vector<LoraRow> rows;
  std::vector<int32_t> row_of;
  std::vector<LoraTile> tiles;
};

Filled Fill(const std::vector<LoraGroupEntry>& groups, const std::vector<int32_t>& tokens,
            int num_tokens) {
  std::vector<float> scales;
  for (size_t m = 0; m < tokens.size(); ++m) scales.push_back(static_cast<float>(m));
  const int num_groups = static_cast<int>(groups.size());
  Filled out;
  out.rows.resize(num_tokens + tokens.size());
  out.row_of.resize(num_tokens);
  out.tiles.resize(MaxLoraTiles(num_tokens, num_groups), LoraTile{nullptr, 99, 99});
  FillLoraRows(groups.data(), num_groups, tokens.data(), scales.data(), num_tokens,
               static_cast<int>(out.tiles.size()), out.rows.data(), out.row_of.data(),
               out.tiles.data());
  return out;
}

TEST(LoraRowsTest, SharersStandTogetherAndTokensWithoutAdapterLast) {
  const LoraSiteEntry a, b;
  const Filled f = Fill({{&a, 0, 2}, {&b, 2, 1}}, {1, 4, 2}, 5);
  const int32_t tokens[] = {1, 4, 2, 0, 3};
  const LoraSiteEntry* sites[] = {&a, &a, &b, nullptr, nullptr};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(f.rows[i].token, tokens[i]);
    EXPECT_EQ(f.rows[i].sites, sites[i]);
    EXPECT_EQ(f.rows[i].next, -1);
    EXPECT_EQ(f.row_of[tokens[i]], i);
    if (i >= 3) continue;
    EXPECT_EQ(f.rows[i].member, i);
    EXPECT_EQ(f.rows[i].scale, i);
  }
  ASSERT_EQ(f.tiles.size(), 4u);
  const int first[] = {0, 2, 3, 0}, count[] = {2, 1, 2, 0};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(f.tiles[i].first, first[i]);
    EXPECT_EQ(f.tiles[i].count, count[i]);
  }
  EXPECT_EQ(f.tiles[0].sites, &a);
  EXPECT_EQ(f.tiles[1].sites, &b);
  EXPECT_EQ(f.tiles[2].sites, nullptr);
}

TEST(LoraRowsTest, FullTilesAreCut) {
  const LoraSiteEntry a;
  std::vector<int32_t> tokens;
  for (int t = 0; t < 19; ++t) tokens.push_back(t);
  const Filled f = Fill({{&a, 0, 19}}, tokens, 20);
  ASSERT_EQ(f.tiles.size(), 5u);
  const int count[] = {8, 8, 3, 1, 0};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(f.tiles[i].count, count[i]);
  EXPECT_EQ(Fill({}, {}, 300).tiles[0].count, 64);
}

TEST(LoraRowsTest, StackedTokensAreLinkedInTheOrderOfTheGroups) {
  const LoraSiteEntry a, b, c;
  const Filled f = Fill({{&a, 0, 2}, {&b, 2, 2}, {&c, 4, 1}}, {0, 1, 1, 2, 1}, 3);
  EXPECT_EQ(f.row_of, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(f.rows[0].next, -1);
  const int second = f.rows[1].next;
  ASSERT_EQ(second, 3);
  EXPECT_EQ(f.rows[second].sites, &b);
  EXPECT_EQ(f.rows[second].member, 2);
  EXPECT_EQ(f.rows[second].token, 1);
  const int third = f.rows[second].next;
  ASSERT_EQ(third, 4);
  EXPECT_EQ(f.rows[third].sites, &c);
  EXPECT_EQ(f.rows[third].next, -1);
  EXPECT_EQ(f.rows[2].sites, &b);
  EXPECT_EQ(f.rows[2].member, 3);
}

// Any step fits the bound: the worst has every group one token over full tiles.
TEST(LoraRowsTest, TilesFitTheirBound) {
  const LoraSiteEntry a;
  std::vector<LoraGroupEntry> groups;
  std::vector<int32_t> tokens;
  for (int g = 0; g < 6; ++g) {
    groups.push_back({&a, static_cast<int32_t>(tokens.size()), 9});
    for (int i = 0; i < 9; ++i) tokens.push_back(static_cast<int32_t>(tokens.size()));
  }
  const Filled f = Fill(groups, tokens, 63);
  int covered = 0;
  for (const LoraTile& tile : f.tiles) covered += tile.count;
  EXPECT_EQ(covered, 63);
}

}  // namespace
}  // namespace rootstock::kernels::cuda
