// Greedy rows, rows without a token and counts on the GPU, against the CPU reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/sampler/sampler_cuda.h"
#include "kernels/sampler/sampler_cuda_testing.h"

namespace rootstock::kernels::cuda {
namespace {

TEST(GreedyCuda, HighestAndLowerIdOfEquals) {
  std::mt19937 random(1);
  for (const Type type : kTypes) {
    for (const int vocab : kVocabs) {
      std::vector<RowCase> cases;
      for (const Look look : kLooks) cases.push_back(MakeCase(look, type, vocab, 0, random));
      for (RowCase& c : cases) c.row.temperature = 0.0f;
      const BatchShape shape{.type = type, .vocab = vocab, .pads = 3, .greedy_only = true};
      const Outputs out = RunBatch(shape, cases);
      for (size_t i = 0; i < cases.size(); ++i) {
        EXPECT_EQ(out.tokens[i], Judge(cases[i], 0).expected) << "vocab " << vocab << " row " << i;
        EXPECT_EQ(out.last_tokens[i], out.tokens[i]);
      }
      for (size_t i = cases.size(); i < out.tokens.size(); ++i) {
        EXPECT_EQ(out.tokens[i], kPoison);
        EXPECT_EQ(out.last_tokens[i], kPoison);
      }
    }
  }
}

TEST(GreedyCuda, EveryPlaceIsSeen) {
  for (const Type type : kTypes) {
    for (const int vocab : {1003, 40960}) {
      std::vector<RowCase> cases;
      for (int at = 0; at < vocab; at += vocab / 97) {
        RowCase c;
        c.row.temperature = 0.0f;
        c.logits.assign(vocab, -3.0f);
        c.logits[at] = -2.0f;
        cases.push_back(c);
      }
      for (const bool greedy_only : {true, false}) {
        const Outputs out =
            RunBatch({.type = type, .vocab = vocab, .greedy_only = greedy_only}, cases);
        for (size_t i = 0; i < cases.size(); ++i) {
          EXPECT_EQ(out.tokens[i], static_cast<int>(i) * (vocab / 97));
        }
      }
    }
  }
}

TEST(GreedyCuda, ZerosOfEitherSignAreEqual) {
  RowCase c;
  c.row.temperature = 0.0f;
  c.logits.assign(5000, -1.0f);
  for (const int at : {4000, 70, 2000}) c.logits[at] = 0.0f;
  for (const int at : {4500, 60, 1000}) c.logits[at] = -0.0f;
  for (const bool greedy_only : {true, false}) {
    EXPECT_EQ(RunBatch({.vocab = 5000, .greedy_only = greedy_only}, {c}).tokens[0], 60);
  }
}

TEST(SamplerCuda, NonfiniteLogitsAreFlagged) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::mt19937 random(2);
  for (const Type type : kTypes) {
    for (const int vocab : {9, 5001, 128256}) {
      std::vector<RowCase> cases;
      for (const float bad : {kInf, -kInf, kNan}) {
        for (const int at : {0, vocab / 2, vocab - 1}) {
          RowCase c = MakeCase(Look::kSpread, type, vocab, 0, random);
          c.logits[at] = bad;
          c.row.temperature = cases.size() % 2 == 0 ? 0.0f : 1.0f;
          c.row.num_logprobs = 2;
          cases.push_back(c);
        }
      }
      cases.push_back(MakeCase(Look::kSpread, type, vocab, 0, random));
      cases.back().row.temperature = 0.0f;
      for (const bool greedy_only : {true, false}) {
        const Outputs out = RunBatch(
            {.type = type, .vocab = vocab, .max_top = 2, .greedy_only = greedy_only}, cases);
        for (size_t i = 0; i + 1 < cases.size(); ++i) {
          EXPECT_EQ(out.tokens[i], -1);
          EXPECT_EQ(out.last_tokens[i], 0);
          if (greedy_only) continue;
          EXPECT_TRUE(std::isnan(out.logprobs[i]));
          EXPECT_EQ(out.ranks[i], 0);
          EXPECT_EQ(out.top_ids[2 * i], -1);
        }
        EXPECT_EQ(out.tokens.back(), Judge(cases.back(), 0).expected);
      }
    }
  }
}

TEST(CountsCuda, ClearedAndFilled) {
  constexpr int kVocab = 1000;
  const DeviceArray<uint32_t> counts(std::vector<uint32_t>(3 * kVocab, 7));
  const std::vector<int32_t> tokens = {5, 5, 999, -1, 1000, 5, 5, 3, 999, 1000};
  const DeviceArray<int32_t> on_device(tokens);
  uint32_t* const row = counts.get() + kVocab;
  ClearCounts(row, kVocab, nullptr);
  AddToCounts(row, kVocab, on_device.get(), static_cast<int>(tokens.size()), 5, nullptr);
  std::vector<uint32_t> want(3 * kVocab, 7);
  std::fill(want.begin() + kVocab, want.begin() + 2 * kVocab, 0);
  want[kVocab + 5] = kInPrompt + 2;
  want[kVocab + 3] = 1;
  want[kVocab + 999] = kInPrompt + 1;
  EXPECT_EQ(counts.Host(), want);
}

}  // namespace
}  // namespace rootstock::kernels::cuda
