#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/linear/cuda_test_data.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/linear/lt_matmul.h"
#include "kernels/linear/plain_cuda.h"

namespace rootstock::kernels::cuda {
namespace {

double Tolerance(Type out) { return out == Type::kF32 ? 1e-5 : 4e-3; }

struct Types {
  Type in, out;
};

class LinearCudaTest : public testing::TestWithParam<Types> {
 protected:
  void SetUp() override {
    std::string error;
    linear_ = MakeLinear(&error);
    ASSERT_NE(linear_, nullptr) << error;
  }

  void Check(int m, int n, int k, bool biased) {
    const auto [in, out] = GetParam();
    TestCase c(in, out, m, n, k, biased);
    SCOPED_TRACE(testing::Message() << "m " << m << " n " << n << " k " << k << " bias " << biased);
    EXPECT_EQ(linear_->Run(c.args, nullptr), "");
    EXPECT_LT(RelativeError(c.args, 4000), Tolerance(out));
    Buffer want(sizeof(float) * m * n);
    LinearArgs plain = c.args;
    plain.out_type = Type::kF32;
    plain.out = want.get();
    CheckCuda(PlainLinear(plain, nullptr), "plain");
    EXPECT_LT(
        Compare(out, c.out.get(), Type::kF32, want.get(), static_cast<size_t>(m) * n).relative,
        Tolerance(out));
  }

  std::unique_ptr<Linear> linear_;
};

TEST_P(LinearCudaTest, EqualsDoubleSumsAtOddShapes) {
  struct Shape {
    int n, k;
  };
  for (const auto [n, k] : {Shape{1, 1},
                            {7, 13},
                            {8, 16},
                            {24, 64},
                            {25, 257},
                            {96, 32},
                            {97, 300},
                            {136, 40},
                            {200, 96},
                            {60, 576},
                            {320, 576},
                            {1536, 576},
                            {576, 1536}}) {
    for (int m : {1, 2, 5, 8, 17, 33, 64, 65, 96, 128, 130, 300}) Check(m, n, k, m % 2 == 1);
  }
}

TEST_P(LinearCudaTest, EqualsDoubleSumsAtModelShapes) {
  struct Shape {
    int n, k;
  };
  for (const auto [n, k] : {Shape{6144, 4096},
                            {4096, 4096},
                            {28672, 4096},
                            {4096, 14336},
                            {15360, 5120},
                            {1280, 8192},
                            {8192, 1024}}) {
    for (int m : {1, 16, 61, 76, 128, 200}) Check(m, n, k, m == 16);
  }
}

// Runs 64 rows, then each smaller number of them: rows must have the same bits.
template <typename Run>
void CheckRowsAlone(Types types, int n, int k, const Run& run) {
  for (bool biased : {false, true}) {
    TestCase all(types.in, types.out, 64, n, k, biased);
    ASSERT_EQ(run(all.args), "");
    const std::vector<float> want = ReadOut(all.args);
    for (int m = 1; m < 64; ++m) {
      LinearArgs some = all.args;
      Buffer few(SizeOf(types.out) * m * n);
      some.m = m;
      some.out = few.get();
      ASSERT_EQ(run(some), "");
      const std::vector<float> got = ReadOut(some);
      ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
          << "m " << m << " n " << n << " k " << k;
    }
  }
}

TEST_P(LinearCudaTest, ARowsBitsDoNotDependOnTheOtherRows) {
  struct Shape {
    int n, k;
  };
  for (const auto [n, k] : {Shape{40, 24},
                            {25, 30},
                            {200, 96},
                            {320, 576},
                            {6144, 4096},
                            {4096, 14336},
                            {5120, 13824},
                            {1280, 8192},
                            {40000, 640}}) {
    CheckRowsAlone(GetParam(), n, k,
                   [&](const LinearArgs& args) { return linear_->Run(args, nullptr); });
  }
}

// The kernels of GPUs that have not our own.
TEST_P(LinearCudaTest, OfCublasltARowsBitsDoNotDependOnTheOtherRows) {
  struct Shape {
    int n, k;
  };
  std::string error;
  const std::unique_ptr<LtMatmul> lt = LtMatmul::Create(&error);
  ASSERT_NE(lt, nullptr) << error;
  for (const auto [n, k] :
       {Shape{40, 24}, {320, 576}, {6144, 4096}, {4096, 14336}, {5120, 13824}, {1280, 8192}}) {
    CheckRowsAlone(GetParam(), n, k,
                   [&](const LinearArgs& args) { return lt->Run(args, nullptr); });
  }
}

TEST_P(LinearCudaTest, RunsInAGraphAsItDoesOutside) {
  const auto [in, out] = GetParam();
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  for (int m : {3, 64, 100, 200}) {
    TestCase c(in, out, m, 320, 576, true);
    ASSERT_EQ(linear_->Run(c.args, stream), "");
    CheckCuda(cudaStreamSynchronize(stream), "run");
    const std::vector<float> want = ReadOut(c.args);
    c.out.Poison();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin");
    ASSERT_EQ(linear_->Run(c.args, stream), "");
    CheckCuda(cudaStreamEndCapture(stream, &graph), "end");
    CheckCuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    CheckCuda(cudaGraphLaunch(exec, stream), "launch");
    CheckCuda(cudaStreamSynchronize(stream), "replay");
    EXPECT_EQ(ReadOut(c.args), want);
    CheckCuda(cudaGraphExecDestroy(exec), "destroy");
    CheckCuda(cudaGraphDestroy(graph), "destroy");
  }
  CheckCuda(cudaStreamDestroy(stream), "destroy");
}

INSTANTIATE_TEST_SUITE_P(Types, LinearCudaTest,
                         testing::Values(Types{Type::kBF16, Type::kBF16},
                                         Types{Type::kBF16, Type::kF32},
                                         Types{Type::kF32, Type::kF32}));

TEST(LtTableTest, EveryEntryIsTakenRightAndTheSameEachTime) {
  std::string error;
  const std::unique_ptr<LtMatmul> lt = LtMatmul::Create(&error);
  ASSERT_NE(lt, nullptr) << error;
  ASSERT_FALSE(LtTable().empty());
  for (const LtEntry& entry : LtTable()) {
    const int m = entry.m - 3;
    SCOPED_TRACE(testing::Message() << "n " << entry.n << " k " << entry.k << " m " << m);
    TestCase c(Type::kBF16, Type::kBF16, m, entry.n, entry.k, false);
    EXPECT_EQ(lt->AlgoOf(c.args), entry.algo);
    ASSERT_EQ(lt->Run(c.args, nullptr), "");
    EXPECT_LT(RelativeError(c.args, 2000), Tolerance(Type::kBF16));
    const size_t count = static_cast<size_t>(m) * entry.n;
    Buffer again(2 * count);
    LinearArgs args = c.args;
    args.out = again.get();
    ASSERT_EQ(lt->RunAs(args, entry.algo, nullptr), "");
    EXPECT_EQ(Compare(Type::kBF16, again.get(), Type::kBF16, c.out.get(), count).largest, 0.0);
  }
}

TEST(LtTableTest, OtherShapesTakeTheHeuristicsBest) {
  std::string error;
  const std::unique_ptr<LtMatmul> lt = LtMatmul::Create(&error);
  ASSERT_NE(lt, nullptr) << error;
  TestCase c(Type::kBF16, Type::kBF16, 300, 320, 576, false);
  const std::vector<LtAlgo> answers = lt->Answers(c.args);
  ASSERT_FALSE(answers.empty());
  EXPECT_EQ(lt->AlgoOf(c.args), answers[0]);
  LtAlgo no_such = answers[0];
  no_such.tile = 60000;
  EXPECT_NE(lt->RunAs(c.args, no_such, nullptr), "");
}

TEST(LinearCudaArgsTest, WhatItCannotDoIsAnError) {
  std::string error;
  const std::unique_ptr<Linear> linear = MakeLinear(&error);
  ASSERT_NE(linear, nullptr) << error;
  TestCase c(Type::kF32, Type::kF32, 2, 8, 8, false);
  LinearArgs args = c.args;
  args.m = 0;
  EXPECT_EQ(linear->Run(args, nullptr), "");
  args = c.args;
  args.k = 0;
  EXPECT_NE(linear->Run(args, nullptr), "");
  args = c.args;
  args.w = nullptr;
  EXPECT_NE(linear->Run(args, nullptr), "");
  args = c.args;
  args.out_type = Type::kBF16;
  EXPECT_NE(linear->Run(args, nullptr), "");
}

}  // namespace
}  // namespace rootstock::kernels::cuda
