#include "kernels/attention/decode_cuda.h"

#include <gtest/gtest.h>

namespace rootstock::kernels::cuda {
namespace {

// Long contexts ask for little before they are there: what blocks share goes by the blocks.
TEST(DecodeAttentionTest, WorkspaceOfLongContextsIsSmall) {
  AttentionShapes shapes;
  shapes.type = Type::kBF16;
  shapes.heads = {32, 8, 128};
  shapes.page_tokens = 16;
  shapes.page_bytes = 65536;
  shapes.max_rows = shapes.max_tokens = 64;
  shapes.max_pages = 64 * (131072 / 16 + 1);
  size_t before = 0, after = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  std::string error;
  const auto decode = DecodeAttention::Make(shapes, &error);
  ASSERT_NE(decode, nullptr) << error;
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_LT(before - after, size_t{100} << 20);
}

}  // namespace
}  // namespace rootstock::kernels::cuda
