#include "worker/lora/lora_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "worker/device/cpu_device.h"
#include "worker/lora/adapter_table.h"

namespace rootstock {
namespace {

CpuDevice device(1);

using testing::ElementsAre;

ModelSpec Spec() {
  ModelSpec spec;
  spec.num_layers = 2;
  spec.hidden_size = 64;
  spec.ffn_size = 96;
  spec.num_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = 16;
  spec.vocab_size = 320;
  return spec;
}

const LoraSpec kLora{{{0, Module::kQ, 3, 2.0f}, {1, Module::kDown, 5, 0.5f}}};
constexpr PageGeometry kGeometry{20, 1024, 16};

AdapterLayout Layout(LoraSharding sharding = LoraSharding::kReplicated) {
  const ModelSpec spec = Spec();
  return *AdapterLayout::Create(spec, kLora, *MakeTpPlan(spec, 2), sharding, DType::kF32,
                                kGeometry.page_bytes);
}

std::vector<PageId> Pages(const AdapterLayout& layout) {
  std::vector<PageId> pages;
  for (uint32_t i = 0; i < layout.num_pages(); ++i) pages.emplace_back(19 - 2 * i);
  return pages;
}

std::unique_ptr<DeviceAdapter> Adapter() {
  const AdapterLayout layout = Layout();
  return *DeviceAdapter::Create(layout, kLora, 2, 1, kGeometry, Pages(layout), device);
}

LoraSite SiteOf(const DeviceAdapter& adapter, LoraView view, int layer, Module m) {
  return LoraGroup{.sites = adapter.sites()}.site(view, layer, m);
}

// Every row of the layout is where a view's table says.
void ExpectRows(const DeviceAdapter& adapter, const AdapterLayout& layout, int tp_rank) {
  const std::vector<PageId> pages = Pages(layout);
  for (const LayoutEntry& entry : layout.entries(tp_rank)) {
    const bool is_a = entry.role == LoraRole::kA;
    LoraSite site =
        SiteOf(adapter, is_a ? LoraView::kShrink : LoraView::kExpand, entry.layer, entry.module);
    if (site.lora_rank == 0) {
      site = SiteOf(adapter, LoraView::kExpandSlice, entry.layer, entry.module);
    }
    EXPECT_EQ(site.lora_rank, entry.ranks.size());
    for (int r = 0; r < site.lora_rank; ++r) {
      const RowPlace& place = layout.rows(tp_rank)[entry.first_row + r];
      EXPECT_EQ((is_a ? site.a : site.b)[r] * 128, pages[place.page].value * 1024 + place.offset);
    }
  }
}

TEST(DeviceAdapterTest, RowsPointIntoItsPagesAndUnadaptedModulesAreEmpty) {
  const AdapterLayout layout = Layout();
  const std::vector<PageId> pages = Pages(layout);
  ASSERT_GE(pages.size(), 2u);
  const std::unique_ptr<DeviceAdapter> adapter = Adapter();
  EXPECT_EQ(adapter->layout_id(), layout.id());
  for (int layer = 0; layer < 2; ++layer) {
    for (const Module m : kAllModules) {
      const bool q = layer == 0 && m == Module::kQ, down = layer == 1 && m == Module::kDown;
      for (const LoraView view : {LoraView::kShrink, LoraView::kExpand}) {
        const LoraSite& site = SiteOf(*adapter, view, layer, m);
        EXPECT_EQ(site.lora_rank, q ? 3 : down ? 5 : 0);
        EXPECT_EQ(site.scale, q ? 2.0f : down ? 0.5f : 0.0f);
      }
      EXPECT_EQ(SiteOf(*adapter, LoraView::kExpandSlice, layer, m).lora_rank, 0);
    }
  }
  ExpectRows(*adapter, layout, 1);
  EXPECT_FALSE(adapter->fully_sharded());
  EXPECT_EQ(adapter->max_lora_rank(), 5);
  EXPECT_EQ(adapter->modules(), ModuleBit(Module::kQ) | ModuleBit(Module::kDown));
}

// What a rank computes with: the components of A that it holds, all those of B.
TEST(DeviceAdapterTest, AFullyShardedOneShrinksWithItsPieceAndExpandsWithAll) {
  const AdapterLayout layout = Layout(LoraSharding::kFullySharded);
  for (int rank = 0; rank < 2; ++rank) {
    const auto adapter =
        *DeviceAdapter::Create(layout, kLora, 2, rank, kGeometry, Pages(layout), device);
    EXPECT_TRUE(adapter->fully_sharded());
    EXPECT_EQ(SiteOf(*adapter, LoraView::kShrink, 0, Module::kQ).lora_rank, rank == 0 ? 2 : 1);
    EXPECT_EQ(SiteOf(*adapter, LoraView::kExpand, 0, Module::kQ).lora_rank, 3);
    EXPECT_EQ(SiteOf(*adapter, LoraView::kShrink, 1, Module::kDown).lora_rank, 5);
    EXPECT_EQ(SiteOf(*adapter, LoraView::kExpand, 1, Module::kDown).lora_rank, 0);
    EXPECT_EQ(SiteOf(*adapter, LoraView::kExpandSlice, 1, Module::kDown).lora_rank, 5);
    EXPECT_EQ(SiteOf(*adapter, LoraView::kExpandSlice, 1, Module::kDown).scale, 0.5f);
    ExpectRows(*adapter, layout, rank);
  }
}

TEST(DeviceAdapterTest, WrongPagesAreRefused) {
  const AdapterLayout layout = Layout();
  std::vector<PageId> pages = Pages(layout);
  pages.pop_back();
  EXPECT_FALSE(DeviceAdapter::Create(layout, kLora, 2, 0, kGeometry, pages, device).ok());
  for (const uint32_t bad : {0u, 20u}) {
    pages = Pages(layout);
    pages[0] = PageId(bad);
    const absl::Status status =
        DeviceAdapter::Create(layout, kLora, 2, 0, kGeometry, pages, device).status();
    EXPECT_EQ(GetErrorDetail(status)->field, "page");
  }
}

TEST(AdapterTableTest, AddFindListDrop) {
  AdapterTable table;
  const Digest a = Sha256Of("a"), b = Sha256Of("b");
  ASSERT_TRUE(table.Add(a, Adapter()).ok());
  ASSERT_TRUE(table.Add(b, Adapter()).ok());
  EXPECT_EQ(table.Add(a, Adapter()).code(), absl::StatusCode::kAlreadyExists);
  ASSERT_NE(table.Find(a), nullptr);
  const std::vector<ResidentAdapter> list = table.List();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_LT(list[0].digest, list[1].digest);
  EXPECT_EQ(list[0].pages, Pages(Layout()));
  EXPECT_EQ(list[0].layout_id, Layout().id());
  EXPECT_TRUE(table.Drop(a));
  EXPECT_FALSE(table.Drop(a));
  EXPECT_EQ(table.Find(a), nullptr);
  EXPECT_NE(table.Find(b), nullptr);
}

TEST(LoraBatchTest, OneGroupAnAdapterWhereverItsTokensAre) {
  const auto a = Adapter(), b = Adapter();
  LoraBatch batch;
  const std::vector<AdapterRun> runs = {
      {0, 1, a.get(), 1.0f}, {1, 2, b.get(), 2.0f}, {3, 6, a.get(), 3.0f}, {7, 8, b.get(), 1.0f}};
  const std::span<const LoraGroup> groups = batch.Build(runs, 9);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].sites.data(), a->sites().data());
  EXPECT_THAT(groups[0].tokens, ElementsAre(0, 3, 4, 5));
  EXPECT_THAT(groups[0].scales, ElementsAre(1.0f, 3.0f, 3.0f, 3.0f));
  EXPECT_THAT(groups[1].tokens, ElementsAre(1, 7));
  EXPECT_EQ(groups[1].modules, b->modules());
}

TEST(LoraBatchTest, StackedAdaptersKeepEachTokensListOrder) {
  const auto a = Adapter(), b = Adapter();
  LoraBatch batch;
  // Token 0: a then b; token 1: b then a.
  const std::vector<AdapterRun> runs = {
      {0, 1, a.get()}, {0, 1, b.get()}, {1, 2, b.get()}, {1, 2, a.get()}};
  std::vector<std::vector<const LoraSite*>> order(2);
  for (const LoraGroup& group : batch.Build(runs, 2)) {
    for (const int32_t token : group.tokens) order[token].push_back(group.sites.data());
  }
  EXPECT_THAT(order[0], ElementsAre(a->sites().data(), b->sites().data()));
  EXPECT_THAT(order[1], ElementsAre(b->sites().data(), a->sites().data()));
}

TEST(LoraBatchTest, NoRunsMeanNoGroups) {
  LoraBatch batch;
  const auto a = Adapter();
  EXPECT_EQ(batch.Build(std::vector<AdapterRun>{{0, 2, a.get()}}, 2).size(), 1u);
  EXPECT_TRUE(batch.Build({}, 16).empty());
}

}  // namespace
}  // namespace rootstock
