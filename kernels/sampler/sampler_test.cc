#include "kernels/sampler/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/sampler/philox.h"

namespace rootstock::kernels {
namespace {

// Known answers published with Random123 (kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformDependsOnEveryPartOfItsKey) {
  const double u = Uniform(1, 2, 3, DrawPurpose::kToken);
  EXPECT_EQ(u, Uniform(1, 2, 3, DrawPurpose::kToken));
  EXPECT_NE(u, Uniform(uint64_t{1} << 32, 2, 3, DrawPurpose::kToken));
  EXPECT_NE(u, Uniform(2, 2, 3, DrawPurpose::kToken));
  EXPECT_NE(u, Uniform(1, 3, 3, DrawPurpose::kToken));
  EXPECT_NE(u, Uniform(1, 2, 4, DrawPurpose::kToken));
  EXPECT_NE(u, Uniform(1, 2, 3, static_cast<DrawPurpose>(1)));
  double sum = 0;
  for (uint32_t i = 0; i < 10000; ++i) {
    const double v = Uniform(7, 0, i, DrawPurpose::kToken);
    ASSERT_GE(v, 0.0);
    ASSERT_LT(v, 1.0);
    sum += v;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
}

int32_t Greedy(const std::vector<float>& logits, SampleParams params) {
  params.temperature = 0;
  SampleScratch scratch;
  return SampleToken(logits, params, scratch);
}

// Share of each token over many draws.
std::vector<double> Shares(const std::vector<float>& logits, SampleParams params, int draws) {
  SampleScratch scratch;
  std::vector<double> share(logits.size());
  for (int i = 0; i < draws; ++i) {
    params.uniform = (i + 0.5) / draws;
    const int32_t token = SampleToken(logits, params, scratch);
    EXPECT_GE(token, 0);
    if (token >= 0) ++share[token];
  }
  for (double& s : share) s /= draws;
  return share;
}

TEST(Sampler, GreedyTakesTheHighestAndTheLowerIdOfEquals) {
  EXPECT_EQ(Greedy({1, 3, 2}, {}), 1);
  EXPECT_EQ(Greedy({1, 3, 3}, {}), 1);
}

TEST(Sampler, PenaltiesAsVllm) {
  const std::vector<TokenCount> counts = {{0, 2, false}, {1, 0, true}};
  SampleParams p;
  p.counts = counts;
  p.repetition_penalty = 2.0f;  // 4 → 2, 3.5 → 1.75: the prompt's counts as well
  EXPECT_EQ(Greedy({4, 3.5f, 2.5f}, p), 2);
  EXPECT_EQ(Greedy({-1, -1.1f, -1.9f}, p), 2);  // below zero it multiplies: −2, −2.2
  EXPECT_EQ(Greedy({4, 3.5f, 1.9f}, p), 0);
  p.repetition_penalty = 1.0f;
  p.frequency_penalty = 0.5f;  // token 0 came twice: 4 → 3; the prompt's do not count
  EXPECT_EQ(Greedy({4, 3.5f, 2.5f}, p), 1);
  EXPECT_EQ(Greedy({4, 2.9f, 2.5f}, p), 0);
  p.frequency_penalty = 0.0f;
  p.presence_penalty = 0.5f;  // once, however often: 4 → 3.5
  EXPECT_EQ(Greedy({4, 3.6f, 0}, p), 1);
  EXPECT_EQ(Greedy({4, 3.4f, 0}, p), 0);
  p.presence_penalty = -1.0f;
  EXPECT_EQ(Greedy({3, 3.5f, 0}, p), 0);
}

TEST(Sampler, BiasAndBans) {
  const std::vector<std::pair<int32_t, float>> bias = {{2, 5.0f}, {0, -1.0f}, {99, 1.0f}};
  SampleParams p;
  p.bias = bias;
  EXPECT_EQ(Greedy({3, 2.5f, 0}, p), 2);
  const std::vector<int32_t> banned = {2, -1, 100};
  p.banned = banned;
  EXPECT_EQ(Greedy({3, 2.5f, 0}, p), 1);  // no bias lifts a ban
  const std::vector<int32_t> all = {0, 1, 2};
  p.banned = all;
  EXPECT_EQ(Greedy({3, 2.5f, 0}, p), -1);
}

TEST(Sampler, NonfiniteLogitsAreFlagged) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, inf, -inf}) {
    EXPECT_EQ(Greedy({1, bad, 2}, {}), -1);
    EXPECT_TRUE(std::isnan(LogSumExp(std::vector<float>{1, bad, 2})));
  }
}

TEST(Sampler, Temperature) {
  SampleParams p;
  p.temperature = 2.0f;
  const auto share = Shares({2, 0}, p, 1000);
  EXPECT_NEAR(share[0], std::exp(1.0) / (1 + std::exp(1.0)), 2e-3);
  p.temperature = 1e-30f;
  EXPECT_EQ(Shares({2, 1.999f}, p, 10)[0], 1.0);
}

TEST(Sampler, TopK) {
  SampleParams p;
  p.top_k = 2;
  auto share = Shares({0, 1, 2, 1.5f}, p, 1000);
  EXPECT_EQ(share[0], 0);
  EXPECT_EQ(share[1], 0);
  EXPECT_NEAR(share[2], std::exp(0.5) / (1 + std::exp(0.5)), 2e-3);
  share = Shares({0, 1, 1, 1}, p, 1000);  // equals of the k-th stay, as vLLM's
  EXPECT_EQ(share[0], 0);
  EXPECT_NEAR(share[3], 1.0 / 3, 2e-3);
  p.top_k = 100;
  EXPECT_GT(Shares({0, 1, 1, 1}, p, 1000)[0], 0);
}

TEST(Sampler, TopP) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.5f), std::log(0.15f),
                                     std::log(0.25f)};
  SampleParams p;
  p.top_p = 0.7f;  // 0.5 is not enough, with 0.25 it is
  auto share = Shares(logits, p, 3000);
  EXPECT_NEAR(share[1], 2.0 / 3, 1e-3);
  EXPECT_NEAR(share[3], 1.0 / 3, 1e-3);
  p.top_p = 1e-9f;  // at least one
  EXPECT_EQ(Shares(logits, p, 10)[1], 1.0);
  p.top_p = 0.6f;
  p.top_k = 2;  // of what top-k left: 0.5 of 0.75 is enough
  EXPECT_EQ(Shares(logits, p, 10)[1], 1.0);
  EXPECT_EQ(Shares({1, 1, 1}, {.top_p = 0.3f}, 10)[0], 1.0);  // of equals the lower id
}

TEST(Sampler, MinP) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.5f), std::log(0.15f),
                                     std::log(0.25f)};
  SampleParams p;
  p.min_p = 0.25f;  // of 0.5: 0.125
  const auto share = Shares(logits, p, 9000);
  EXPECT_EQ(share[0], 0);
  EXPECT_NEAR(share[2], 0.15 / 0.9, 1e-3);
}

// χ² of real draws against the distribution, 15 degrees of freedom.
TEST(Sampler, DrawsFollowTheDistribution) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1.5f);
  std::vector<float> logits(16);
  for (float& l : logits) l = normal(random);
  const double lse = LogSumExp(logits);
  constexpr int kDraws = 40000;
  std::vector<int> seen(logits.size());
  SampleParams p;
  SampleScratch scratch;
  for (int i = 0; i < kDraws; ++i) {
    p.uniform = Uniform(12345, i % 4, i / 4, DrawPurpose::kToken);
    ++seen[SampleToken(logits, p, scratch)];
  }
  double chi2 = 0;
  for (size_t t = 0; t < logits.size(); ++t) {
    const double want = kDraws * std::exp(logits[t] - lse);
    chi2 += (seen[t] - want) * (seen[t] - want) / want;
  }
  EXPECT_LT(chi2, 37.7);  // 99.9 %
}

TEST(Sampler, LogprobsAreOfTheRawLogits) {
  const std::vector<float> logits = {1, 3, 3, -2};
  EXPECT_NEAR(LogSumExp(logits), std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(-2.0)),
              1e-12);
  EXPECT_NEAR(LogSumExp(std::vector<float>{1000, 1000}), 1000 + std::log(2.0), 1e-9);
  EXPECT_EQ(RankOf(logits, 1), 1);
  EXPECT_EQ(RankOf(logits, 0), 3);
  std::vector<int32_t> top;
  TopTokens(logits, 3, top);
  EXPECT_EQ(top, (std::vector<int32_t>{1, 2, 0}));
  TopTokens(logits, 9, top);
  EXPECT_EQ(top, (std::vector<int32_t>{1, 2, 0, 3}));
  TopTokens(logits, 0, top);
  EXPECT_TRUE(top.empty());
}

}  // namespace
}  // namespace rootstock::kernels
