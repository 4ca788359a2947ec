#include "common/layout/adapter_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/base/status.h"

namespace rootstock {
namespace {

ModelSpec Model(int heads, int kv_heads, int ffn) {
  ModelSpec m;
  m.num_layers = 3;
  m.num_heads = heads;
  m.num_kv_heads = kv_heads;
  m.head_dim = 16;
  m.hidden_size = 64;
  m.ffn_size = ffn;
  m.vocab_size = 320;
  return m;
}

LoraSpec AllModules(int lora_rank, int num_layers = 3) {
  LoraSpec spec;
  for (int layer = 0; layer < num_layers; ++layer) {
    for (const Module m : kAllModules) spec.modules.push_back({layer, m, lora_rank, 2.0f});
  }
  return spec;
}

constexpr uint32_t kPageBytes = 1024;

AdapterLayout Make(const ModelSpec& model, const LoraSpec& lora, int tp_size, LoraSharding sharding,
                   DType dtype = DType::kF32, uint32_t page_bytes = kPageBytes) {
  const auto tp = MakeTpPlan(model, tp_size);
  EXPECT_TRUE(tp.ok()) << tp.status();
  auto layout = AdapterLayout::Create(model, lora, *tp, sharding, dtype, page_bytes);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *layout;
}

struct Case {
  int tp_size;
  LoraSharding sharding;
};

class LayoutOverRanks : public testing::TestWithParam<Case> {
 protected:
  ModelSpec model_ = GetParam().tp_size == 3 ? Model(6, 3, 96) : Model(8, 2, 96);
  LoraSpec lora_ = AllModules(5);  // no tp_size but 1 divides it
  AdapterLayout layout_ = Make(model_, lora_, GetParam().tp_size, GetParam().sharding);
};

TEST_P(LayoutOverRanks, RowsKeepToTheirPageAndDoNotOverlap) {
  uint32_t most_pages = 0;
  for (int rank = 0; rank < GetParam().tp_size; ++rank) {
    std::vector<std::pair<uint64_t, uint64_t>> spans;
    uint32_t row = 0;
    uint64_t total = 0;
    for (const LayoutEntry& e : layout_.entries(rank)) {
      EXPECT_EQ(e.first_row, row);
      const uint64_t bytes = (e.elements.size() * 4 + 15) / 16 * 16;
      for (int r = 0; r < e.ranks.size(); ++r, ++row) {
        const RowPlace place = layout_.rows(rank)[row];
        EXPECT_EQ(place.offset % 128, 0u);
        EXPECT_LE(place.offset + bytes, kPageBytes);
        total += bytes;
        if (bytes == 0) continue;
        most_pages = std::max(most_pages, place.page + 1);
        const uint64_t at = uint64_t{place.page} * kPageBytes + place.offset;
        spans.emplace_back(at, at + bytes);
      }
    }
    EXPECT_EQ(layout_.rows(rank).size(), row);
    EXPECT_EQ(layout_.row_bytes(rank), total);
    EXPECT_TRUE(std::is_sorted(spans.begin(), spans.end()));
    for (size_t i = 1; i < spans.size(); ++i) EXPECT_LE(spans[i - 1].second, spans[i].first);
  }
  EXPECT_EQ(layout_.num_pages(), most_pages);
}

// Every product of a rank component with an input and an output feature must be made once: over
// all tp_ranks each (rank component, element) of A and of B is held exactly as often as the table
// of DESIGN §6 says.
TEST_P(LayoutOverRanks, EveryElementIsHeldAsOftenAsTheTableSays) {
  const int tp_size = GetParam().tp_size;
  const bool fully = GetParam().sharding == LoraSharding::kFullySharded;
  for (const LoraModule& m : lora_.modules) {
    std::map<LoraRole, std::map<std::pair<int, int>, int>> held;
    for (int rank = 0; rank < tp_size; ++rank) {
      for (const LayoutEntry& e : layout_.entries(rank)) {
        if (e.layer != m.layer || e.module != m.module) continue;
        for (int r = e.ranks.begin; r < e.ranks.end; ++r) {
          for (int i = e.elements.begin; i < e.elements.end; ++i) ++held[e.role][{r, i}];
        }
      }
    }
    const bool kv = m.module == Module::kK || m.module == Module::kV;
    const int kv_copies = kv ? std::max(1, tp_size / model_.num_kv_heads) : 1;
    const bool row_parallel = IsRowParallel(m.module);
    const int a_copies = row_parallel || fully ? 1 : tp_size;
    const int b_copies = row_parallel ? (fully ? 1 : tp_size) : kv_copies;
    EXPECT_EQ(held[LoraRole::kA].size(), 5u * model_.in_features(m.module));
    EXPECT_EQ(held[LoraRole::kB].size(), 5u * model_.out_features(m.module));
    for (const auto& [at, n] : held[LoraRole::kA]) ASSERT_EQ(n, a_copies) << ModuleName(m.module);
    for (const auto& [at, n] : held[LoraRole::kB]) ASSERT_EQ(n, b_copies) << ModuleName(m.module);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, LayoutOverRanks,
    testing::Values(Case{1, LoraSharding::kReplicated}, Case{2, LoraSharding::kReplicated},
                    Case{3, LoraSharding::kReplicated}, Case{4, LoraSharding::kReplicated},
                    Case{8, LoraSharding::kReplicated}, Case{1, LoraSharding::kFullySharded},
                    Case{2, LoraSharding::kFullySharded}, Case{3, LoraSharding::kFullySharded},
                    Case{4, LoraSharding::kFullySharded}, Case{8, LoraSharding::kFullySharded}));

TEST(AdapterLayout, EntriesAreLayerMajorThenModuleThenRole) {
  const AdapterLayout layout = Make(Model(4, 2, 96), AllModules(2), 2, LoraSharding::kReplicated);
  const auto& entries = layout.entries(1);
  ASSERT_EQ(entries.size(), 42u);
  EXPECT_EQ(entries[0].role, LoraRole::kA);
  EXPECT_EQ(entries[1].role, LoraRole::kB);
  EXPECT_EQ(entries[1].module, Module::kQ);
  EXPECT_EQ(entries[2].module, Module::kK);
  EXPECT_EQ(entries[14].layer, 1);
  EXPECT_EQ(entries[0].elements, (Range{0, 64}));    // q: A whole
  EXPECT_EQ(entries[1].elements, (Range{32, 64}));   // B by output heads
  EXPECT_EQ(entries[6].elements, (Range{32, 64}));   // o: A by input heads
  EXPECT_EQ(entries[7].elements, (Range{0, 64}));    // B whole
  EXPECT_EQ(entries[12].elements, (Range{48, 96}));  // down
}

// FAULTS D4 and D5: k and v are narrower than q, and the same on ranks that share a KV head; their
// parts follow the base's ranges, never thirds of q,k,v or equal parts.
TEST(AdapterLayout, D4D5BOfKAndVFollowsTheKvHeadsOfTheRank) {
  struct Case {
    int heads, kv_heads, tp_size, tp_rank;
    Range q, kv;
  };
  const Case cases[] = {{8, 2, 1, 0, {0, 128}, {0, 32}},   {8, 2, 2, 1, {64, 128}, {16, 32}},
                        {8, 2, 4, 1, {32, 64}, {0, 16}},   {8, 2, 4, 2, {64, 96}, {16, 32}},
                        {8, 2, 8, 3, {48, 64}, {0, 16}},   {8, 2, 8, 4, {64, 80}, {16, 32}},
                        {9, 3, 2, 0, {0, 96}, {0, 32}},    {9, 3, 2, 1, {96, 144}, {32, 48}},
                        {9, 3, 3, 2, {96, 144}, {32, 48}}, {8, 1, 4, 3, {96, 128}, {0, 16}}};
  for (const Case& c : cases) {
    for (const LoraSharding sharding : {LoraSharding::kReplicated, LoraSharding::kFullySharded}) {
      const AdapterLayout layout =
          Make(Model(c.heads, c.kv_heads, 96), AllModules(3), c.tp_size, sharding);
      const auto& entries = layout.entries(c.tp_rank);
      EXPECT_EQ(entries[1].elements, c.q) << c.tp_size << " " << c.tp_rank;
      EXPECT_EQ(entries[3].elements, c.kv) << c.tp_size << " " << c.tp_rank;
      EXPECT_EQ(entries[5].elements, c.kv) << c.tp_size << " " << c.tp_rank;
      EXPECT_EQ(entries[1].ranks, (Range{0, 3}));
    }
  }
}

TEST(AdapterLayout, LoraRankBelowTpSizeLeavesRanksWithoutComponents) {
  const AdapterLayout layout = Make(Model(8, 2, 96), AllModules(1), 8, LoraSharding::kFullySharded);
  EXPECT_EQ(layout.entries(0)[0].ranks.size(), 1);
  EXPECT_EQ(layout.entries(7)[0].ranks.size(), 0);
  EXPECT_EQ(layout.entries(7)[1].ranks.size(), 1);   // B needs every component
  EXPECT_EQ(layout.entries(7)[14].ranks.size(), 1);  // the next layer's q
}

// Goal: 1.15 / TP of the adapter before page rounding, whatever the remainder of the lora_rank.
TEST(AdapterLayout, AFullyShardedRankHoldsItsShareOfTheBytes) {
  struct Shape {
    int layers, heads, kv_heads, head_dim, hidden, ffn;
  };
  const Shape shapes[] = {{16, 32, 8, 128, 4096, 14336},
                          {16, 40, 40, 128, 5120, 13824},
                          {16, 64, 8, 128, 8192, 28672},
                          {16, 16, 8, 64, 1024, 2816}};
  for (const Shape& s : shapes) {
    ModelSpec model = Model(s.heads, s.kv_heads, s.ffn);
    model.num_layers = s.layers;
    model.head_dim = s.head_dim;
    model.hidden_size = s.hidden;
    for (const int tp_size : {2, 4, 8}) {
      for (const int lora_rank : {tp_size, 9, 11, 16, 17, 64, 100, 256}) {
        const LoraSpec lora = AllModules(lora_rank, s.layers);
        const auto bytes = [&](int ranks, LoraSharding sharding) {
          const AdapterLayout layout =
              Make(model, lora, ranks, sharding, DType::kBF16, uint32_t{4} << 20);
          uint64_t most = 0;
          for (int r = 0; r < ranks; ++r) most = std::max(most, layout.row_bytes(r));
          return static_cast<double>(most);
        };
        const double whole = bytes(1, LoraSharding::kReplicated);
        const double share = bytes(tp_size, LoraSharding::kFullySharded);
        EXPECT_LE(share, 1.15 / tp_size * whole) << s.hidden << " " << tp_size << " " << lora_rank;
        EXPECT_LT(share, bytes(tp_size, LoraSharding::kReplicated));
      }
    }
  }
}

TEST(AdapterLayout, SmallRowsShareAPageAndNothingIsPaddedToAMaximum) {
  LoraSpec lora;
  lora.modules = {{0, Module::kQ, 1, 1.0f}, {2, Module::kV, 3, 1.0f}};
  const AdapterLayout layout =
      Make(Model(4, 2, 96), lora, 1, LoraSharding::kReplicated, DType::kBF16);
  EXPECT_EQ(layout.row_bytes(0), 2u * 64 * 2 + 3u * (64 + 32) * 2);
  EXPECT_EQ(layout.num_pages(), 1u);
  EXPECT_EQ(layout.rows(0).size(), 8u);
}

TEST(AdapterLayout, IdIsStableAndFeelsEachInput) {
  const ModelSpec model = Model(4, 2, 96);
  const LoraSpec lora = AllModules(4);
  const auto id = [&](const ModelSpec& m, const LoraSpec& l, int tp, LoraSharding s, DType d,
                      uint32_t page) { return Make(m, l, tp, s, d, page).id(); };
  const auto base = id(model, lora, 2, LoraSharding::kReplicated, DType::kF32, 1024);
  EXPECT_EQ(base, id(model, lora, 2, LoraSharding::kReplicated, DType::kF32, 1024));
  LoraSpec other_rank = lora, fewer = lora, other_scale = lora;
  other_rank.modules[3].lora_rank = 3;
  fewer.modules.pop_back();
  other_scale.modules[0].scale = 9.0f;
  const std::set<uint64_t> ids = {
      base,
      id(model, other_rank, 2, LoraSharding::kReplicated, DType::kF32, 1024),
      id(model, fewer, 2, LoraSharding::kReplicated, DType::kF32, 1024),
      id(Model(4, 2, 112), lora, 2, LoraSharding::kReplicated, DType::kF32, 1024),
      id(model, lora, 1, LoraSharding::kReplicated, DType::kF32, 1024),
      id(model, lora, 2, LoraSharding::kFullySharded, DType::kF32, 1024),
      id(model, lora, 2, LoraSharding::kReplicated, DType::kBF16, 1024),
      id(model, lora, 2, LoraSharding::kReplicated, DType::kF32, 2048),
  };
  EXPECT_EQ(ids.size(), 8u);
  // Placement doesn't depend on it: one layout serves both.
  EXPECT_EQ(base, id(model, other_scale, 2, LoraSharding::kReplicated, DType::kF32, 1024));
}

TEST(AdapterLayout, ARowLongerThanAPageIsRefusedWithTheNumbers) {
  const ModelSpec model = Model(4, 2, 96);
  const auto tp = MakeTpPlan(model, 1);
  const auto layout =
      AdapterLayout::Create(model, AllModules(4), *tp, LoraSharding::kReplicated, DType::kF32, 256);
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(GetErrorDetail(layout.status())->reason, Reason::kRowTooLong);
  const std::string message(layout.status().message());
  EXPECT_NE(message.find("384 bytes"), std::string::npos) << message;  // 96 × 4
  EXPECT_NE(message.find("256"), std::string::npos) << message;
  EXPECT_NE(message.find("layers.0.mlp"), std::string::npos) << message;
  EXPECT_FALSE(
      AdapterLayout::Create(model, AllModules(4), *tp, LoraSharding::kReplicated, DType::kF32, 1000)
          .ok());
}

TEST(AdapterLayout, KvBytesFollowTheLargestShare) {
  const ModelSpec model = Model(6, 3, 96);
  EXPECT_EQ(KvBytesPerToken(model, *MakeTpPlan(model, 1), DType::kF32), 2u * 3 * 3 * 16 * 4);
  EXPECT_EQ(KvBytesPerToken(model, *MakeTpPlan(model, 2), DType::kBF16), 2u * 3 * 2 * 16 * 2);
}

}  // namespace
}  // namespace rootstock
