#include "worker/memory/slab.h"

#include <gtest/gtest.h>

#include "common/base/status.h"
#include "worker/device/cpu_device.h"

namespace rootstock {
namespace {

ModelSpec Spec() {
  ModelSpec spec;
  spec.num_layers = 3;
  spec.hidden_size = 64;
  spec.ffn_size = 96;
  spec.num_heads = 9;
  spec.num_kv_heads = 3;
  spec.head_dim = 8;
  spec.vocab_size = 320;
  return spec;
}

PageGeometry Geometry(int tp_size, const GeometryRequest& request) {
  const ModelSpec spec = Spec();
  absl::StatusOr<PageGeometry> geometry =
      MakeGeometry(spec, *MakeTpPlan(spec, tp_size), DType::kF32, request);
  EXPECT_TRUE(geometry.ok()) << geometry.status();
  return geometry.value_or(PageGeometry{});
}

TEST(GeometryTest, PageHoldsTheLargestKvShareRoundedTo128) {
  GeometryRequest request;
  request.num_pages = 10;
  EXPECT_EQ(Geometry(1, request), (PageGeometry{10, 16 * 2 * 3 * 3 * 8 * 4, 16}));
  // Ranks hold 2 and 1 KV heads: both take pages for 2.
  EXPECT_EQ(Geometry(2, request), (PageGeometry{10, 16 * 2 * 3 * 2 * 8 * 4, 16}));
  request.page_tokens = 1;
  EXPECT_EQ(Geometry(3, request).page_bytes, 256u);  // 192 rounded up
}

TEST(GeometryTest, PagesFillTheBudget) {
  GeometryRequest request;
  request.budget_bytes = 1000000;
  EXPECT_EQ(Geometry(1, request).num_pages, 1000000u / 9216);
}

TEST(GeometryTest, TooFewAndTooManyPagesAreRefusedWithTheNumbers) {
  const ModelSpec spec = Spec();
  const TpPlan tp = *MakeTpPlan(spec, 1);
  GeometryRequest request;
  request.budget_bytes = 9216;
  const absl::Status few = MakeGeometry(spec, tp, DType::kF32, request).status();
  EXPECT_NE(few.message().find("num_pages=1"), std::string::npos) << few;
  EXPECT_NE(few.message().find("9216"), std::string::npos) << few;
  request.num_pages = 4000000000u;  // · 9216 is beyond what a row offset reaches
  EXPECT_EQ(MakeGeometry(spec, tp, DType::kF32, request).status().code(),
            absl::StatusCode::kInvalidArgument);
  request.page_tokens = 0;
  EXPECT_FALSE(MakeGeometry(spec, tp, DType::kF32, request).ok());
}

TEST(GeometryTest, DefaultBudgetIsSharedByTheRanksOfAHost) {
  const uint64_t one = DefaultHostBudget(1);
  EXPECT_GT(one, uint64_t{64} << 20);
  EXPECT_LT(DefaultHostBudget(4), one / 3);
}

TEST(SlabTest, PagesAreZeroedAlignedAndApart) {
  CpuDevice device(1);
  absl::StatusOr<std::unique_ptr<Slab>> slab = Slab::Create(device, {5, 384, 16});
  ASSERT_TRUE(slab.ok());
  for (uint32_t p = 0; p < 5; ++p) {
    const std::span<std::byte> page = (*slab)->page(PageId(p));
    EXPECT_EQ(page.data(), (*slab)->data() + p * 384);
    EXPECT_EQ(page.size(), 384u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(page.data()) % 128, 0u);
    EXPECT_EQ(page[0], std::byte{0});
    EXPECT_EQ(page[383], std::byte{0});
  }
}

TEST(SlabTest, MoreThanTheHostHasIsAnErrorWithTheSize) {
  CpuDevice device(1);
  const absl::Status status = Slab::Create(device, {UINT32_MAX, uint32_t{1} << 31, 16}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kNoMemory);
}

}  // namespace
}  // namespace rootstock
