// Few and small launches, for tools under which a launch takes seconds: see tests/racecheck.sh.
#include <gtest/gtest.h>

#include "kernels/activation/activation_cuda.h"
#include "kernels/linear/cuda_test_data.h"
#include "kernels/linear/plain_cuda.h"
#include "kernels/linear/stream_cuda.h"

namespace rootstock::kernels::cuda {
namespace {

struct FewCase {
  int m, n, k;
  StreamTile tile;
  StreamRing ring;
};

class FewLinearLaunches : public testing::TestWithParam<FewCase> {};

TEST_P(FewLinearLaunches, StreamAndPlainKernelAgree) {
  const auto [m, n, k, tile, ring] = GetParam();
  std::string error;
  const std::unique_ptr<StreamLinear> stream = StreamLinear::Create(&error);
  ASSERT_NE(stream, nullptr) << error;
  TestCase c(Type::kBF16, m % 2 == 0 ? Type::kBF16 : Type::kF32, m, n, k, /*biased=*/true);
  LinearArgs plain = c.args;
  Buffer want(sizeof(float) * m * n);
  plain.out_type = Type::kF32;
  plain.out = want.get();
  CheckCuda(PlainLinear(plain, nullptr), "plain");
  ASSERT_EQ(stream->Run(c.args, tile, ring, nullptr), "");
  const Difference difference =
      Compare(c.args.out_type, c.out.get(), Type::kF32, want.get(), static_cast<size_t>(m) * n);
  EXPECT_LT(difference.relative, c.args.out_type == Type::kF32 ? 5e-6 : 4e-3);
}

// Rings that wrap, alone and in clusters of 2 and 4; tiles that end inside an instruction.
INSTANTIATE_TEST_SUITE_P(
    Cases, FewLinearLaunches,
    testing::Values(FewCase{1, 72, 192, {72, 1}, {.stage_boxes = 1}},
                    FewCase{13, 100, 520, {64, 1}, {.stage_boxes = 1, .max_stages = 2}},
                    FewCase{8, 64, 512, {64, 2}, {.stage_boxes = 2, .max_stages = 2}},
                    FewCase{50, 136, 712, {136, 2}, {.stage_boxes = 1, .x_boxes = 2, .pace = 1}},
                    FewCase{64, 64, 1024, {64, 4}, {.stage_boxes = 1, .max_stages = 3}},
                    FewCase{90, 100, 520, {64, 2}, {.stage_boxes = 1, .max_stages = 2}},
                    FewCase{96, 136, 712, {136, 1}, {.stage_boxes = 1, .x_boxes = 2}}));

// silu(gate) · up of tiles that end inside an instruction.
class FewGatedLinearLaunches : public testing::TestWithParam<int> {};

TEST_P(FewGatedLinearLaunches, HaveTheBitsOfTheirParts) {
  const int m = GetParam();
  constexpr int kHalf = 8512;
  std::string error;
  const std::unique_ptr<StreamLinear> stream = StreamLinear::Create(&error);
  ASSERT_NE(stream, nullptr) << error;
  TestCase c(Type::kBF16, Type::kBF16, m, 2 * kHalf, /*k=*/72, /*biased=*/false);
  ASSERT_EQ(stream->Run(c.args, nullptr), "");
  const Buffer want(size_t{2} * m * kHalf), got(size_t{2} * m * kHalf);
  SiluMul({Type::kBF16, c.out.get(), kHalf, m, want.get()}, {}, {}, nullptr);
  LinearArgs gated = c.args;
  gated.gated = true;
  gated.out = got.get();
  ASSERT_TRUE(StreamLinear::Gates(gated));
  ASSERT_EQ(stream->Run(gated, nullptr), "");
  EXPECT_EQ(
      Compare(Type::kBF16, got.get(), Type::kBF16, want.get(), size_t{1} * m * kHalf).relative, 0);
}

INSTANTIATE_TEST_SUITE_P(Rows, FewGatedLinearLaunches, testing::Values(33, 70));

}  // namespace
}  // namespace rootstock::kernels::cuda
