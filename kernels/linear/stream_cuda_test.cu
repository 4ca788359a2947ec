#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/activation/activation_cuda.h"
#include "kernels/linear/cuda_test_data.h"
#include "kernels/linear/plain_cuda.h"
#include "kernels/linear/stream_cuda.h"

namespace rootstock::kernels::cuda {
namespace {

class StreamLinearTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string error;
    stream_ = StreamLinear::Create(&error);
    ASSERT_EQ(error, "");
    ASSERT_NE(stream_, nullptr) << "the kernel is for sm_90";
  }

  void Check(TestCase& c, StreamTile tile, StreamRing ring) {
    SCOPED_TRACE(testing::Message() << "m " << c.args.m << " n " << c.args.n << " k " << c.args.k
                                    << " rows " << tile.rows << " split " << tile.split << " boxes "
                                    << ring.stage_boxes << " stages " << ring.max_stages);
    LinearArgs plain = c.args;
    Buffer want(sizeof(float) * c.args.m * c.args.n);
    plain.out_type = Type::kF32;
    plain.out = want.get();
    CheckCuda(PlainLinear(plain, nullptr), "plain");
    c.out.Poison();
    ASSERT_EQ(stream_->Run(c.args, tile, ring, nullptr), "");
    const Difference difference = Compare(c.args.out_type, c.out.get(), Type::kF32, want.get(),
                                          static_cast<size_t>(c.args.m) * c.args.n);
    ASSERT_LT(difference.relative, c.args.out_type == Type::kF32 ? 5e-6 : 4e-3);
  }

  std::unique_ptr<StreamLinear> stream_;
};

struct Shape {
  int n, k;
};

class StreamLinearShapeTest : public StreamLinearTest, public testing::WithParamInterface<Shape> {};

// Tiles that end inside an instruction, tails of n and k, more tiles than blocks, rings that wrap.
TEST_P(StreamLinearShapeTest, EveryTileAndRingGivesTheSums) {
  const auto [n, k] = GetParam();
  for (int m : {1, 8, 13, 31, 50, 64, 67, 96}) {
    TestCase c(Type::kBF16, m % 2 == 0 ? Type::kBF16 : Type::kF32, m, n, k, m == 13);
    for (int rows : {8, 24, 64, 72, 128, 136, 248}) {
      for (int split : {1, 2, 4}) {
        if (k < 64 * split) continue;
        if (m > 64 && rows > 128 && split > 1) continue;  // no such kernel
        Check(c, {rows, split}, {.stage_boxes = 1});
        Check(c, {rows, split}, {.stage_boxes = 2, .max_stages = 2, .trigger = 0});
        Check(c, {rows, split}, {.stage_boxes = 3, .pace = 2, .trigger = 9});
        Check(c, {rows, split}, {.stage_boxes = 1, .x_boxes = 2, .pace = 1});
        Check(c, {rows, split},
              {.stage_boxes = 2, .max_stages = 4, .pace = 2, .pace_always = true});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, StreamLinearShapeTest,
                         testing::Values(Shape{8, 8}, Shape{203, 200}, Shape{576, 1536},
                                         Shape{1000, 2048}));

TEST_F(StreamLinearTest, ABlockWalksSeveralTiles) {
  for (int m : {5, 64, 96}) {
    TestCase c(Type::kBF16, Type::kF32, m, 20000, 264, true);
    for (int rows : {16, 72}) Check(c, {rows, 1}, {.stage_boxes = 2});
    if (m <= 64) Check(c, {136, 1}, {.stage_boxes = 2});
  }
}

TEST_F(StreamLinearTest, AboveSixtyFourTokensAWideTileIsItsBlocksAlone) {
  TestCase c(Type::kBF16, Type::kF32, 65, 20000, 264, false);
  EXPECT_NE(stream_->Run(c.args, {136, 1}, {.stage_boxes = 1}, nullptr), "");
  EXPECT_NE(stream_->Run(c.args, {136, 2}, {.stage_boxes = 1}, nullptr), "");
  c.args.n = 128256;  // tiles of 248 rows, more of them than blocks
  EXPECT_FALSE(StreamLinear::Takes(c.args));
  c.args.m = 64;
  EXPECT_TRUE(StreamLinear::Takes(c.args));
  for (const int n : {32000, 28672, 4096}) {
    c.args.n = n;
    c.args.m = 96;
    EXPECT_TRUE(StreamLinear::Takes(c.args));
    c.args.m = 97;
    EXPECT_FALSE(StreamLinear::Takes(c.args));
  }
}

TEST_F(StreamLinearTest, TheRingDoesNotChangeBits) {
  TestCase c(Type::kBF16, Type::kF32, 33, 4096, 4096, false);
  const StreamTile tile = StreamTile::For(4096, 4096);
  std::vector<float> want;
  for (const StreamRing ring :
       {StreamRing{.stage_boxes = 1}, StreamRing{.stage_boxes = 4},
        StreamRing{.stage_boxes = 1, .x_boxes = 3, .pace = 4},
        StreamRing{.stage_boxes = 2, .max_stages = 3, .pace = 1, .trigger = 7}}) {
    Check(c, tile, ring);
    const std::vector<float> got = ReadOut(c.args);
    if (want.empty()) want = got;
    EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0);
  }
}

// A chain in which each kernel reads what the one before wrote, all of them dependent launches.
TEST_F(StreamLinearTest, ADependentLaunchReadsWhatTheKernelBeforeWrote) {
  constexpr int kM = 64, kWidth = 2048, kLinks = 12;
  TestCase c(Type::kBF16, Type::kBF16, kM, kWidth, kWidth, false);
  FillRandom(Type::kBF16, c.w.get(), size_t{kWidth} * kWidth, 9, 0.05f, nullptr);
  Buffer other(size_t{2} * kM * kWidth);
  std::vector<std::vector<float>> runs;
  for (bool serial : {true, false, false}) {
    FillRandom(Type::kBF16, c.x.get(), size_t{kM} * kWidth, 1, 1.0f, nullptr);
    c.out.Poison();
    other.Poison();
    const void* in = c.x.get();
    for (int i = 0; i < kLinks; ++i) {
      LinearArgs args = c.args;
      args.x = in;
      args.out = i % 2 == 0 ? other.get() : c.out.get();
      ASSERT_EQ(stream_->Run(args, nullptr), "");
      if (serial) CheckCuda(cudaDeviceSynchronize(), "run");
      in = args.out;
    }
    CheckCuda(cudaDeviceSynchronize(), "chain");
    runs.push_back(ReadOut(c.args));
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_EQ(runs[0], runs[2]);
}

// Tails of n and k, a tile that ends inside an instruction, every number of tokens' kernel, and
// halves that are no multiple of 64, which silu·mul takes by its plain kernel.
TEST_F(StreamLinearTest, GatedHasTheBitsOfItsPartsOneAfterTheOther) {
  for (const auto [n, k] :
       {Shape{28672, 512}, Shape{27648, 200}, Shape{20000, 264}, Shape{19120, 512}}) {
    for (int m : {9, 16, 31, 50, 64, 65, 96}) {
      SCOPED_TRACE(testing::Message() << "m " << m << " n " << n << " k " << k);
      TestCase c(Type::kBF16, Type::kBF16, m, n, k, false);
      ASSERT_EQ(stream_->Run(c.args, nullptr), "");
      const int half = n / 2;
      Buffer want(size_t{2} * m * half), got(size_t{2} * m * half);
      SiluMul({Type::kBF16, c.out.get(), half, m, want.get()}, {}, {}, nullptr);
      got.Poison();
      LinearArgs args = c.args;
      ASSERT_TRUE(StreamLinear::Gates(args));
      args.gated = true;
      args.out = got.get();
      ASSERT_EQ(stream_->Run(args, nullptr), "");
      std::vector<uint16_t> a(size_t{1} * m * half), b(a.size());
      CheckCuda(cudaMemcpy(a.data(), want.get(), 2 * a.size(), cudaMemcpyDefault), "want");
      CheckCuda(cudaMemcpy(b.data(), got.get(), 2 * b.size(), cudaMemcpyDefault), "got");
      EXPECT_EQ(std::memcmp(a.data(), b.data(), 2 * a.size()), 0);
    }
  }
}

TEST_F(StreamLinearTest, GatesWideTilesWithoutBias) {
  TestCase c(Type::kBF16, Type::kBF16, 9, 28672, 64, true);
  EXPECT_FALSE(StreamLinear::Gates(c.args));
  c.args.bias = nullptr;
  EXPECT_TRUE(StreamLinear::Gates(c.args));
  c.args.n = 28672 - 8;
  EXPECT_FALSE(StreamLinear::Gates(c.args));
  c.args.n = 4096;  // tiles of fewer rows
  EXPECT_FALSE(StreamLinear::Gates(c.args));
  c.args.n = 128256;  // more tiles than blocks
  EXPECT_FALSE(StreamLinear::Gates(c.args));
  c.args.n = 28672;
  c.args.m = 8;
  EXPECT_FALSE(StreamLinear::Gates(c.args));
  c.args.m = 97;
  EXPECT_FALSE(StreamLinear::Gates(c.args));
  c.args.m = 96;
  EXPECT_TRUE(StreamLinear::Gates(c.args));
  c.args.out_type = Type::kF32;
  EXPECT_FALSE(StreamLinear::Gates(c.args));
}

TEST(StreamTileTest, DependsOnTheMatrixAlone) {
  struct Expected {
    int n, k, rows, split;
  };
  for (const auto [n, k, rows, split] : {Expected{6144, 4096, 96, 2},
                                         {4096, 4096, 64, 2},
                                         {28672, 4096, 224, 1},
                                         {4096, 14336, 64, 2},
                                         {15360, 5120, 120, 1},
                                         {5120, 13824, 80, 2},
                                         {27648, 5120, 216, 1},
                                         {1280, 8192, 64, 4},
                                         {7168, 8192, 112, 2},
                                         {128256, 4096, 248, 1},
                                         {32000, 5120, 248, 1},
                                         {8, 16, 8, 1}}) {
    const StreamTile tile = StreamTile::For(n, k);
    EXPECT_EQ(tile.rows, rows) << n << " " << k;
    EXPECT_EQ(tile.split, split) << n << " " << k;
  }
}

}  // namespace
}  // namespace rootstock::kernels::cuda
