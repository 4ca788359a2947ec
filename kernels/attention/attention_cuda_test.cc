#include "kernels/attention/attention_cuda.h"

#include <gtest/gtest.h>

#include "kernels/attention/attention_cuda_case.h"
#include "kernels/attention/flashinfer/prefill.h"
#include "kernels/attention/plain_cuda.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr double kF32Bound = 2e-6;
constexpr double kBf16Bound = 6e-3;  // rounding of the output, and of weights on tensor cores

double Bound(Type type) { return type == Type::kF32 ? kF32Bound : kBf16Bound; }

// Pads, single tokens and prompts whose ends fall everywhere in tiles and pages.
const std::vector<CaseRow> kMixed = {{1, 1, 1},  {37, 37, 2},  {5, 19, 3},  {1, 0, 0},  {1, 34, 4},
                                     {0, 0, 0},  {18, 108, 5}, {3, 0, 0},   {1, 16, 6}, {64, 64, 7},
                                     {1, 65, 8}, {90, 300, 9}, {1, 515, 10}};

std::vector<CaseShape> Shapes() {
  std::vector<CaseShape> shapes;
  for (Type type : {Type::kF32, Type::kBF16}) {
    for (const HeadShape& heads : {HeadShape{4, 4, 16},
                                   {9, 3, 64},
                                   {6, 1, 24},
                                   {40, 1, 8},
                                   {2, 2, 128},
                                   {3, 1, 256},
                                   {8, 2, 128},
                                   {5, 5, 96},
                                   {16, 2, 64}}) {
      for (int page_tokens : {16, 5, 64}) shapes.push_back({type, heads, page_tokens});
    }
  }
  return shapes;
}

std::string Name(const CaseShape& s) {
  return std::string(s.type == Type::kF32 ? "f32 " : "bf16 ") + std::to_string(s.heads.num_heads) +
         "/" + std::to_string(s.heads.num_kv_heads) + " x " + std::to_string(s.heads.head_dim) +
         ", pages of " + std::to_string(s.page_tokens);
}

// Plan and Run of a fresh attention.
std::string RunBest(AttentionCase& test) {
  std::string error;
  const auto attention = MakePagedAttention(test.shapes(), &error);
  if (attention == nullptr) return error;
  return test.Run([&] {
    const std::string plan = attention->Plan(test.batch(), nullptr);
    if (!plan.empty()) return plan;
    return attention->Run(test.kv(), test.qkv(), test.out(), nullptr);
  });
}

std::string RunPlain(AttentionCase& test) {
  return test.Run([&] {
    const cudaError_t error = PlainAttention(test.shapes(), test.batch(), test.kv(), test.qkv(),
                                             test.out(), PlainRows::kAll, nullptr);
    return std::string(error == cudaSuccess ? "" : cudaGetErrorString(error));
  });
}

TEST(AttentionCudaTest, PlainKernelInMixedSteps) {
  for (const CaseShape& shape : Shapes()) {
    AttentionCase test(shape, kMixed);
    ASSERT_EQ(RunPlain(test), "") << Name(shape);
    EXPECT_LT(test.Error(), Bound(shape.type)) << Name(shape);
  }
}

TEST(AttentionCudaTest, MixedSteps) {
  for (const CaseShape& shape : Shapes()) {
    AttentionCase test(shape, kMixed);
    ASSERT_EQ(RunBest(test), "") << Name(shape);
    EXPECT_LT(test.Error(), Bound(shape.type)) << Name(shape);
  }
}

TEST(AttentionCudaTest, FlashKernels) {
  int device = 0, major = 0;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), cudaSuccess);
  for (FlashKernel kernel : {FlashKernel::kFa2, FlashKernel::kFa3}) {
    for (const HeadShape& heads :
         {HeadShape{9, 3, 64}, {2, 2, 64}, {3, 1, 128}, {8, 1, 128}, {8, 2, 128}, {12, 1, 64}}) {
      for (int page_tokens : {16, 5, 32}) {
        const CaseShape shape = {Type::kBF16, heads, page_tokens};
        AttentionCase test(shape, {{37, 37, 2},
                                   {5, 19, 3},
                                   {2, 1034, 4},
                                   {18, 108, 5},
                                   {64, 64, 7},
                                   {300, 300, 8},
                                   {90, 300, 9},
                                   {193, 515, 10}});
        std::string error;
        const auto prefill = MakeFlashPrefill(test.shapes(), kernel, &error);
        if (kernel == FlashKernel::kFa3 && major != 9) {
          EXPECT_EQ(prefill, nullptr);
          continue;
        }
        ASSERT_NE(prefill, nullptr) << error;
        ASSERT_EQ(test.Run([&] {
          const std::string plan = prefill->Plan(test.batch(), nullptr);
          if (!plan.empty()) return plan;
          return prefill->Run(test.kv(), test.qkv(), test.out(), nullptr);
        }),
                  "")
            << Name(shape);
        EXPECT_LT(test.Error(), kBf16Bound)
            << Name(shape) << (kernel == FlashKernel::kFa2 ? " FA2" : " FA3");
      }
    }
  }
}

TEST(AttentionCudaTest, Decode) {
  const std::vector<CaseRow> rows = {{1, 1, 1},  {1, 0, 0},    {1, 700, 2}, {1, 16, 3},
                                     {1, 17, 4}, {1, 1025, 5}, {1, 64, 6},  {1, 0, 0}};
  for (const CaseShape& shape : Shapes()) {
    AttentionCase test(shape, rows);
    ASSERT_EQ(RunBest(test), "") << Name(shape);
    EXPECT_LT(test.Error(), Bound(shape.type)) << Name(shape);
  }
}

TEST(AttentionCudaTest, DecodeOfEveryGroup) {
  const std::vector<CaseRow> rows = {{1, 65, 1},  {1, 0, 0},  {1, 257, 2}, {1, 3000, 3},
                                     {1, 15, 4},  {1, 1, 5},  {1, 64, 6},  {1, 128, 7},
                                     {1, 511, 8}, {1, 300, 9}};
  for (int dim : {64, 128}) {
    for (int group = 1; group <= 9; ++group) {
      for (int kv_heads : {1, 3}) {
        const CaseShape shape = {Type::kBF16, {group * kv_heads, kv_heads, dim}, 16 * kv_heads};
        AttentionCase test(shape, rows);
        ASSERT_EQ(RunBest(test), "") << Name(shape);
        EXPECT_LT(test.Error(), kBf16Bound) << Name(shape);
      }
    }
  }
}

// More work than one wave of blocks, so that blocks take several chunks and share rows: of long
// rows, and of short ones whose ends lie close to one another.
TEST(AttentionCudaTest, DecodeOfManyRows) {
  std::vector<CaseRow> rows, short_rows;
  for (int i = 0; i < 100; ++i) {
    rows.push_back({1, i % 9 == 4 ? 0 : 1 + 97 * i % 1300, static_cast<uint32_t>(i)});
  }
  for (int i = 0; i < 250; ++i) {
    short_rows.push_back({1, 1 + 29 * i % 300, static_cast<uint32_t>(i)});
  }
  for (const CaseShape& shape : {CaseShape{Type::kBF16, {8, 2, 128}, 16},
                                 {Type::kBF16, {16, 2, 128}, 16},
                                 {Type::kBF16, {6, 2, 64}, 32}}) {
    for (const auto& of : {rows, short_rows}) {
      AttentionCase test(shape, of);
      ASSERT_EQ(RunBest(test), "") << Name(shape);
      EXPECT_LT(test.Error(), kBf16Bound) << Name(shape) << ", " << of.size() << " rows";
    }
  }
}

const std::vector<CaseShape> kDecodeShapes = {{Type::kBF16, {8, 2, 128}, 16},
                                              {Type::kBF16, {4, 4, 64}, 32},
                                              {Type::kBF16, {8, 1, 128}, 32},
                                              {Type::kBF16, {2, 1, 96}, 16},
                                              {Type::kF32, {9, 3, 64}, 16}};

// The outputs of one row of a step.
std::vector<float> RowOf(const AttentionCase& test, const CaseShape& shape, int token) {
  const std::vector<float> all = test.Result();
  const int width = shape.heads.num_heads * shape.heads.head_dim;
  return {all.begin() + token * width, all.begin() + (token + 1) * width};
}

// A row's bits are its own: alone, and at any place among others.
TEST(AttentionCudaTest, DecodeRowIsTheSameInEveryBatch) {
  for (const CaseShape& shape : kDecodeShapes) {
    for (int kv_len : {777, 64, 2500}) {
      const CaseRow row = {1, kv_len, 1};
      AttentionCase alone(shape, {row});
      ASSERT_EQ(RunBest(alone), "") << Name(shape);
      const std::vector<float> want = alone.Result();
      for (int batch : {2, 3, 16, 64}) {
        std::vector<CaseRow> rows;
        for (int i = 0; i < batch; ++i) {
          rows.push_back({1, 1 + 331 * i % 1100, static_cast<uint32_t>(i + 2)});
        }
        const int place = batch * 2 / 3;
        rows[place] = row;
        AttentionCase test(shape, rows);
        ASSERT_EQ(RunBest(test), "") << Name(shape);
        EXPECT_EQ(RowOf(test, shape, place), want) << Name(shape) << ", " << batch << " rows";
      }
      AttentionCase mixed(shape, {{70, 200, 2}, row, {3, 9, 3}});
      ASSERT_EQ(RunBest(mixed), "") << Name(shape);
      EXPECT_EQ(RowOf(mixed, shape, 70), want) << Name(shape) << ", among prompts";
    }
  }
}

// A graph reads the lengths when it is replayed, and leaves everything as it found it.
TEST(AttentionCudaTest, GraphFollowsTheLengthsInDeviceMemory) {
  for (const CaseShape& shape : kDecodeShapes) {
    std::vector<CaseRow> long_rows, short_rows;
    std::vector<int32_t> lengths;
    for (int i = 0; i < 40; ++i) {
      const uint32_t seed = static_cast<uint32_t>(i);
      long_rows.push_back({1, 1 + 173 * i % 1000, seed});
      lengths.push_back(1 + long_rows.back().kv_len / (1 + i % 3) / 2);
      short_rows.push_back({1, lengths.back(), seed});
    }
    AttentionCase fresh(shape, short_rows), test(shape, long_rows);
    ASSERT_EQ(RunBest(fresh), "");
    std::string error;
    const auto attention = MakePagedAttention(test.shapes(), &error);
    ASSERT_NE(attention, nullptr) << error;
    ASSERT_EQ(attention->Plan(test.batch(), nullptr), "");
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ASSERT_EQ(attention->Run(test.kv(), test.qkv(), test.out(), stream), "");
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(test.Run([&] { return cudaGraphLaunch(exec, stream) == cudaSuccess ? "" : "no"; }),
                "");
      EXPECT_LT(test.Error(), Bound(shape.type)) << Name(shape);
    }
    cudaMemcpy(const_cast<int32_t*>(test.batch().device.kv_len), lengths.data(), lengths.size() * 4,
               cudaMemcpyHostToDevice);
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(test.Run([&] { return cudaGraphLaunch(exec, stream) == cudaSuccess ? "" : "no"; }),
                "");
      EXPECT_EQ(test.Result(), fresh.Result()) << Name(shape) << ", replay " << i;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

// The kernel of rows with one query is left out of a step that has none.
TEST(AttentionCudaTest, PromptsAloneLaunchOneKernel) {
  const CaseShape shape = {Type::kBF16, {8, 2, 128}, 16};
  const std::vector<CaseRow> prompts = {{37, 37, 2}, {300, 300, 8}};
  for (const std::vector<CaseRow>& more :
       {std::vector<CaseRow>{}, {CaseRow{1, 20, 3}}, {CaseRow{3, 0, 0}}}) {
    std::vector<CaseRow> rows = prompts;
    rows.insert(rows.end(), more.begin(), more.end());
    AttentionCase test(shape, rows);
    std::string error;
    const auto attention = MakePagedAttention(test.shapes(), &error);
    ASSERT_NE(attention, nullptr) << error;
    ASSERT_EQ(attention->Plan(test.batch(), nullptr), "");
    cudaStream_t stream;
    cudaGraph_t graph;
    size_t kernels = 0;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(attention->Run(test.kv(), test.qkv(), test.out(), stream), "");
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &kernels), cudaSuccess);
    EXPECT_EQ(kernels, 1 + more.size());
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    ASSERT_EQ(RunBest(test), "");
    EXPECT_LT(test.Error(), kBf16Bound);
  }
}

TEST(AttentionCudaTest, ShapesThatAreRefused) {
  std::string error;
  AttentionShapes shapes;
  shapes.heads = {4, 2, 100};
  EXPECT_EQ(MakePagedAttention(shapes, &error), nullptr);
  EXPECT_NE(error.find("multiple of 8"), std::string::npos);
  shapes.heads = {4, 3, 64};
  EXPECT_EQ(MakePagedAttention(shapes, &error), nullptr);
}

}  // namespace
}  // namespace rootstock::kernels::cuda
