#include "common/tp/tp.h"

#include <gtest/gtest.h>

#include <set>

#include "common/base/status.h"

namespace rootstock {
namespace {

ModelSpec Spec(int heads, int kv_heads, int ffn = 96, int vocab = 320) {
  ModelSpec m;
  m.num_heads = heads;
  m.num_kv_heads = kv_heads;
  m.head_dim = 16;
  m.hidden_size = heads * 16;
  m.ffn_size = ffn;
  m.vocab_size = vocab;
  return m;
}

TEST(TpPlan, NineQueryThreeKvOverTwo) {
  const auto plan = MakeTpPlan(Spec(9, 3), 2);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->shards[0].heads, (Range{0, 6}));
  EXPECT_EQ(plan->shards[1].heads, (Range{6, 9}));
  EXPECT_EQ(plan->shards[0].kv_heads, (Range{0, 2}));
  EXPECT_EQ(plan->shards[1].kv_heads, (Range{2, 3}));
  EXPECT_EQ(plan->max_kv_heads(), 2);
  EXPECT_EQ(plan->sharded_features(1, Module::kQ), (Range{96, 144}));
  EXPECT_EQ(plan->sharded_features(1, Module::kO), (Range{96, 144}));
  EXPECT_EQ(plan->sharded_features(1, Module::kV), (Range{32, 48}));
}

TEST(TpPlan, MoreRanksThanKvHeadsShareOne) {
  const auto plan = MakeTpPlan(Spec(8, 2), 8);
  ASSERT_TRUE(plan.ok());
  for (int r = 0; r < 8; ++r) {
    EXPECT_EQ(plan->shards[r].heads, (Range{r, r + 1}));
    EXPECT_EQ(plan->shards[r].kv_heads, (Range{r / 4, r / 4 + 1}));
  }
}

TEST(TpPlan, RefusalsCarryTheNumbers) {
  const auto a = MakeTpPlan(Spec(8, 2), 3);
  ASSERT_FALSE(a.ok());
  EXPECT_EQ(GetErrorDetail(a.status())->reason, Reason::kCannotSplit);
  EXPECT_NE(std::string(a.status().message()).find("8 query heads and 2 KV heads"),
            std::string::npos);
  EXPECT_FALSE(MakeTpPlan(Spec(6, 2), 4).ok());  // 2 ranks can't share 3 heads
  EXPECT_FALSE(MakeTpPlan(Spec(8, 2), 0).ok());
  EXPECT_FALSE(MakeTpPlan(Spec(8, 8, 16), 4).ok());  // ffn 16 in units of 8 over 4
}

TEST(TpPlan, RangesCoverEverythingOnce) {
  for (const int tp : {1, 2, 3, 4, 5, 7, 8}) {
    for (const int n : {88, 96, 331, 320, 1536, 49152}) {
      int at = 0;
      for (int r = 0; r < tp; ++r) {
        const Range range = EvenRange(n, tp, r, 8);
        EXPECT_EQ(range.begin, at);
        if (r + 1 < tp) {
          EXPECT_EQ(range.end % 8, 0);
        }
        at = range.end;
      }
      EXPECT_EQ(at, n);
    }
  }
}

TEST(TpPlan, LoraRankOverRanks) {
  EXPECT_EQ(LoraPieceRange(5, 4, 0), (Range{0, 2}));
  EXPECT_EQ(LoraPieceRange(5, 4, 2), (Range{4, 5}));
  EXPECT_EQ(LoraPieceRange(5, 4, 3), (Range{5, 5}));
  EXPECT_EQ(LoraPieceRange(1, 8, 1), (Range{1, 1}));
}

TEST(TpPlan, PiecesOfALoraRankGoRoundTheRanks) {
  for (const int tp : {1, 2, 3, 4, 7, 8}) {
    for (const Module m : kAllModules) {
      std::vector<std::set<int>> of_rank(tp);
      for (int layer = 0; layer < tp; ++layer) {
        std::set<int> pieces;
        for (int r = 0; r < tp; ++r) {
          const int piece = LoraPieceOf(layer, m, tp, r);
          EXPECT_EQ(LoraPieceOwner(layer, m, tp, piece), r);
          pieces.insert(piece);
          of_rank[r].insert(piece);
        }
        EXPECT_EQ(pieces.size(), static_cast<size_t>(tp));
      }
      for (const auto& pieces : of_rank) EXPECT_EQ(pieces.size(), static_cast<size_t>(tp));
    }
  }
}

}  // namespace
}  // namespace rootstock
