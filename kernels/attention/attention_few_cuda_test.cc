// Few and small launches, for tools under which a launch takes seconds: see tests/racecheck.sh.
#include <gtest/gtest.h>

#include "kernels/attention/attention_cuda_case.h"
#include "kernels/attention/flashinfer/prefill.h"
#include "kernels/attention/plain_cuda.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr double kBound = 6e-3;

// Plan and Run of a fresh attention.
void CheckBest(const CaseShape& shape, const std::vector<CaseRow>& rows) {
  AttentionCase test(shape, rows);
  std::string error;
  const auto attention = MakePagedAttention(test.shapes(), &error);
  ASSERT_NE(attention, nullptr) << error;
  ASSERT_EQ(test.Run([&] {
    const std::string plan = attention->Plan(test.batch(), nullptr);
    return plan.empty() ? attention->Run(test.kv(), test.qkv(), test.out(), nullptr) : plan;
  }),
            "");
  EXPECT_LT(test.Error(), kBound);
}

// A row within a chunk, one over several, a pad.
const std::vector<CaseRow> kFewRows = {{1, 33, 1}, {1, 300, 2}, {1, 0, 0}};

TEST(FewAttentionLaunches, DecodeOfHeads128) {
  CheckBest({Type::kBF16, {8, 2, 128}, 16}, kFewRows);
}

TEST(FewAttentionLaunches, DecodeOfWideGroups) {
  CheckBest({Type::kBF16, {8, 1, 128}, 16}, kFewRows);
}

TEST(FewAttentionLaunches, DecodeOfHeads64) { CheckBest({Type::kBF16, {3, 1, 64}, 16}, kFewRows); }

TEST(FewAttentionLaunches, Plain) {
  for (const Type type : {Type::kF32, Type::kBF16}) {
    AttentionCase test({type, {3, 1, 24}, 5}, {{1, 33, 1}, {7, 40, 2}, {1, 0, 0}});
    ASSERT_EQ(test.Run([&] {
      const cudaError_t error = PlainAttention(test.shapes(), test.batch(), test.kv(), test.qkv(),
                                               test.out(), PlainRows::kAll, nullptr);
      return std::string(error == cudaSuccess ? "" : cudaGetErrorString(error));
    }),
              "");
    EXPECT_LT(test.Error(), kBound);
  }
}

TEST(FewAttentionLaunches, Mixed) {
  CheckBest({Type::kBF16, {2, 1, 64}, 16}, {{37, 60, 1}, {1, 33, 2}, {5, 19, 3}});
}

void CheckPrefill(FlashKernel kernel, int head_dim, int launches) {
  AttentionCase test({Type::kBF16, {2, 1, head_dim}, 16}, {{37, 60, 1}, {5, 19, 3}});
  std::string error;
  const auto prefill = MakeFlashPrefill(test.shapes(), kernel, &error);
  ASSERT_NE(prefill, nullptr) << error;
  for (int i = 0; i < launches; ++i) {
    ASSERT_EQ(test.Run([&] {
      const std::string plan = prefill->Plan(test.batch(), nullptr);
      return plan.empty() ? prefill->Run(test.kv(), test.qkv(), test.out(), nullptr) : plan;
    }),
              "");
    EXPECT_LT(test.Error(), kBound) << i;
  }
}

TEST(FewAttentionLaunches, Fa2) { CheckPrefill(FlashKernel::kFa2, 128, 1); }

// FA3 where there is Hopper. Racecheck tells of no hazard between warps at a barrier that opens too
// early, but its delays show it, in every second launch.
TEST(FewAttentionLaunches, PrefillOfHeads64) { CheckPrefill(FlashKernel::kBest, 64, 8); }

TEST(FewAttentionLaunches, PrefillOfHeads128) { CheckPrefill(FlashKernel::kBest, 128, 8); }

}  // namespace
}  // namespace rootstock::kernels::cuda
