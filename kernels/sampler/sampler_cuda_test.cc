// The GPU's sampler against the CPU reference: draws, penalties, logprobs.
#include "kernels/sampler/sampler_cuda.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/sampler/sampler_cuda_testing.h"

namespace rootstock::kernels::cuda {
namespace {

// Rows with the same parameters, every look, many draws.
struct Setting {
  float temperature, top_p, min_p;
  int top_k;
};
constexpr Setting kSettings[] = {
    {1.0f, 1.0f, 0.0f, 0},       {0.7f, 1.0f, 0.0f, 50},    {1.0f, 0.9f, 0.0f, 0},
    {0.8f, 0.95f, 0.0f, 40},     {1.3f, 0.5f, 0.05f, 0},    {1.0f, 1.0f, 0.02f, 0},
    {2.0f, 0.999f, 0.0f, 3000},  {1.0f, 1e-9f, 0.0f, 0},    {0.01f, 0.9f, 0.1f, 1},
    {1e-30f, 0.9f, 0.0f, 5},     {1e-42f, 1.0f, 0.0f, 0},   {50.0f, 0.3f, 0.0f, 0},
    {1.0f, 0.9999999f, 0.0f, 0}, {1.0f, 1.0f, 0.0f, 20000}, {0.6f, 0.99f, 0.001f, 500},
    {1.0f, 0.9f, 0.0f, 256},     {1.0f, 1.0f, 0.01f, 257}};

TEST(SamplerCuda, TokensAreTheReferences) {
  std::mt19937 random(3);
  int rows = 0, different = 0;
  for (const Type type : kTypes) {
    for (const int vocab : kVocabs) {
      std::vector<RowCase> cases;
      for (const Look look : kLooks) {
        for (const Setting& s : kSettings) {
          RowCase c = MakeCase(look, type, vocab, cases.size(), random);
          c.row.temperature = s.temperature;
          c.row.top_p = s.top_p;
          c.row.min_p = s.min_p;
          c.row.top_k = s.top_k;
          cases.push_back(c);
        }
      }
      const Outputs out = RunBatch({.type = type, .vocab = vocab, .pads = 1}, cases);
      for (size_t i = 0; i < cases.size(); ++i) {
        const Verdict v = Judge(cases[i], out.tokens[i]);
        ++rows;
        different += !v.equal;
        EXPECT_TRUE(v.equal || v.justified)
            << v.why << "; vocab " << vocab << ", look " << i / std::size(kSettings) << ", setting "
            << i % std::size(kSettings) << ", bf16 " << (type == Type::kBF16);
        EXPECT_EQ(out.last_tokens[i], out.tokens[i]);
      }
      EXPECT_EQ(out.tokens.back(), kPoison);
    }
  }
  RecordProperty("rows", rows);
  RecordProperty("different", different);
  std::printf("%d of %d tokens differ, all within the bound\n", different, rows);
  EXPECT_LE(different, rows / 100);
}

TEST(SamplerCuda, PenaltiesBiasAndBans) {
  std::mt19937 random(4);
  for (const Type type : kTypes) {
    for (const int vocab : {50, 4099, 128256}) {
      std::vector<RowCase> cases;
      for (int i = 0; i < 24; ++i) {
        RowCase c = MakeCase(kLooks[i % 3], type, vocab, i, random);
        c.row.temperature = i % 2 == 0 ? 0.0f : 0.9f;
        c.row.top_k = i % 3 == 0 ? 20 : 0;
        c.row.top_p = i % 4 == 1 ? 0.8f : 1.0f;
        c.row.presence_penalty = 0.3f;
        c.row.frequency_penalty = 0.7f;
        c.row.repetition_penalty = 1.3f;
        // Among the likeliest, so that they matter.
        std::vector<int32_t> top;
        TopTokens(c.logits, 40, top);
        for (int j = 0; j < 30; ++j) {
          c.counts.push_back({top[j], static_cast<uint32_t>(j % 4), j % 3 != 1});
        }
        for (int j = 0; i % 5 != 0 && j < 70; ++j) {
          c.bias.emplace_back(top[j * 7 % 40], 0.25f * static_cast<float>(j % 5) - 0.5f);
        }
        c.bias.emplace_back(-1, 100.0f);
        c.bias.emplace_back(vocab, 100.0f);
        if (i % 4 < 2) c.banned = {top[3], top[1], vocab + 5, top[20]};
        cases.push_back(c);
      }
      const Outputs out = RunBatch({.type = type, .vocab = vocab}, cases);
      for (size_t i = 0; i < cases.size(); ++i) {
        const Verdict v = Judge(cases[i], out.tokens[i]);
        EXPECT_TRUE(v.equal || v.justified) << v.why << " vocab " << vocab << " row " << i;
        std::vector<uint32_t> want(vocab);
        for (const TokenCount& t : cases[i].counts) {
          want[t.token] = t.outputs | (t.in_prompt ? kInPrompt : 0);
        }
        ASSERT_GE(out.tokens[i], 0);
        ++want[out.tokens[i]];
        EXPECT_TRUE(std::equal(want.begin(), want.end(), out.counts.begin() + i * vocab)) << i;
      }
    }
  }
}

TEST(SamplerCuda, AllBannedGivesNoToken) {
  RowCase c;
  c.logits = {1, 2, 3};
  c.banned = {0, 1, 2};
  c.counts = {{1, 1, false}};
  c.row.num_logprobs = 1;
  std::vector<RowCase> cases = {c, c};
  cases[1].row.temperature = 0.0f;
  const Outputs out = RunBatch({.vocab = 3, .max_top = 1}, cases);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(out.tokens[i], -1);
    EXPECT_EQ(out.last_tokens[i], 0);
    EXPECT_TRUE(std::isnan(out.logprobs[i]));
    EXPECT_EQ(out.top_ids[i], -1);
  }
  EXPECT_EQ(out.counts, (std::vector<uint32_t>{0, 1, 0, 0, 1, 0}));
}

void ExpectLogprobs(const RowCase& c, const Outputs& out, size_t row, int max_top) {
  const double lse = LogSumExp(c.logits);
  const int32_t token = out.tokens[row];
  ASSERT_GE(token, 0);
  EXPECT_NEAR(out.logprobs[row], c.logits[token] - lse, 2e-6 * (1 + std::abs(lse)));
  EXPECT_EQ(out.ranks[row], RankOf(c.logits, token));
  std::vector<int32_t> top;
  TopTokens(c.logits, c.row.num_logprobs, top);
  for (int j = 0; j < max_top; ++j) {
    const size_t at = row * max_top + j;
    if (j >= c.row.num_logprobs) {
      EXPECT_EQ(out.top_ids[at], kPoison);
    } else if (j >= static_cast<int>(top.size())) {
      EXPECT_EQ(out.top_ids[at], -1);
      EXPECT_TRUE(std::isnan(out.top_logprobs[at]));
    } else {
      EXPECT_EQ(out.top_ids[at], top[j]) << "entry " << j;
      EXPECT_NEAR(out.top_logprobs[at], c.logits[top[j]] - lse, 2e-6 * (1 + std::abs(lse)));
    }
  }
}

TEST(SamplerCuda, LogprobsOfTheRawLogits) {
  std::mt19937 random(5);
  constexpr int kMaxTop = 130;
  for (const Type type : kTypes) {
    for (const int vocab : kVocabs) {
      std::vector<RowCase> cases;
      for (const Look look : kLooks) {
        for (const int top : {-1, 0, 1, 5, 20, kMaxTopLogprobs}) {
          RowCase c = MakeCase(look, type, vocab, cases.size(), random);
          c.row.temperature = cases.size() % 3 == 0 ? 0.0f : 1.0f;
          c.row.top_k = cases.size() % 2 == 0 ? 30 : 0;
          c.row.num_logprobs = top;
          if (cases.size() % 2 == 0) c.bias = {{vocab / 2, 3.0f}};  // the logprobs do not see it
          if (cases.size() % 4 == 3) c.row.given = vocab / 3;
          cases.push_back(c);
        }
      }
      const Outputs out = RunBatch({.type = type, .vocab = vocab, .max_top = kMaxTop}, cases);
      for (size_t i = 0; i < cases.size(); ++i) {
        SCOPED_TRACE("vocab " + std::to_string(vocab) + " row " + std::to_string(i));
        if (cases[i].row.given >= 0) {
          EXPECT_EQ(out.tokens[i], cases[i].row.given);
          EXPECT_EQ(out.last_tokens[i], kPoison);
        } else {
          const Verdict v = Judge(cases[i], out.tokens[i]);
          EXPECT_TRUE(v.equal || v.justified) << v.why;
        }
        if (cases[i].row.num_logprobs >= 0) {
          ExpectLogprobs(cases[i], out, i, kMaxTop);
        } else {
          EXPECT_EQ(out.ranks[i], kPoison);
          EXPECT_EQ(std::bit_cast<int32_t>(out.logprobs[i]), kPoison);
        }
      }
    }
  }
}

TEST(SamplerCuda, ARowsBitsDoNotDependOnTheBatch) {
  std::mt19937 random(6);
  constexpr int kVocab = 32003, kTop = 4;
  for (const Type type : kTypes) {
    std::vector<RowCase> cases;
    for (int i = 0; i < 40; ++i) {
      RowCase c = MakeCase(kLooks[i % 5], type, kVocab, i, random);
      c.row.top_p = i % 2 == 0 ? 0.9f : 1.0f;
      c.row.top_k = i % 3 == 0 ? 100 : 0;
      c.row.num_logprobs = kTop;
      cases.push_back(c);
    }
    const BatchShape shape{.type = type, .vocab = kVocab, .max_top = kTop};
    const Outputs all = RunBatch(shape, cases);
    const std::vector<RowCase> reversed(cases.rbegin(), cases.rend());
    const Outputs back = RunBatch(shape, reversed);
    for (size_t i = 0; i < cases.size(); ++i) {
      const Outputs one = RunBatch(shape, {cases[i]});
      const size_t j = cases.size() - 1 - i;
      EXPECT_EQ(one.tokens[0], all.tokens[i]);
      EXPECT_EQ(back.tokens[j], all.tokens[i]);
      EXPECT_EQ(one.logprobs[0], all.logprobs[i]);
      EXPECT_EQ(back.logprobs[j], all.logprobs[i]);
      EXPECT_EQ(one.top_logprobs[kTop - 1], all.top_logprobs[i * kTop + kTop - 1]);
    }
  }
}

// Too long for the shared memory of a group's blocks.
TEST(SamplerCuda, AVocabularyThatSpills) {
  constexpr int kVocab = 500003;
  EXPECT_GT(SampleScratchBytes(1, kVocab), 0u);
  std::mt19937 random(7);
  std::vector<RowCase> cases;
  for (int i = 0; i < 6; ++i) {
    RowCase c = MakeCase(kLooks[i % 5], Type::kF32, kVocab, i, random);
    c.row.top_p = i % 2 == 0 ? 0.9f : 1.0f;
    c.row.num_logprobs = 3;
    cases.push_back(c);
  }
  const Outputs out = RunBatch({.vocab = kVocab, .max_top = 3}, cases);
  for (size_t i = 0; i < cases.size(); ++i) {
    const Verdict v = Judge(cases[i], out.tokens[i]);
    EXPECT_TRUE(v.equal || v.justified) << v.why;
    ExpectLogprobs(cases[i], out, i, 3);
  }
}

// Rows that another GPU sampled: sampled, without a token, scored only.
TEST(SamplerCuda, TakesTokensOfAnotherGpu) {
  std::vector<SampleRow> rows(3);
  for (int i = 0; i < 3; ++i) rows[i].slot = 4 - 2 * i;
  rows[2].given = 9;
  const DeviceArray<SampleRow> on_device(rows);
  const DeviceArray<int32_t> tokens(std::vector<int32_t>{7, -1, 9});
  const DeviceArray<int32_t> last(std::vector<int32_t>{1, 1, 1, 1, 1});
  TakeTokens(on_device.get(), tokens.get(), 3, last.get(), nullptr);
  EXPECT_EQ(last.Host(), (std::vector<int32_t>{1, 1, 0, 1, 7}));
}

}  // namespace
}  // namespace rootstock::kernels::cuda
