#include "worker/ops/sampler.h"

#include <gtest/gtest.h>

#include <cmath>

namespace rootstock {
namespace {

TEST(SamplerOp, SameKeySameTokenWhateverRanBefore) {
  std::vector<float> logits(500);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i));
  SamplingParams params;
  const auto draw = [&](Sampler& sampler, uint32_t position) {
    return sampler.Sample(logits, {.params = &params, .seed = 77, .position = position});
  };
  Sampler one, two;
  std::vector<int32_t> forward, backward;
  for (uint32_t p = 0; p < 50; ++p) forward.push_back(draw(one, p));
  for (uint32_t p = 50; p-- > 0;) backward.insert(backward.begin(), draw(two, p));
  EXPECT_EQ(forward, backward);
  EXPECT_NE(forward, std::vector<int32_t>(50, forward[0]));
}

TEST(SamplerOp, MinTokensBansUntilReached) {
  SamplingParams params;
  params.temperature = 0;
  params.min_tokens = 2;
  params.banned_until_min = {1};
  const std::vector<float> logits = {0, 5, 4};
  Sampler sampler;
  EXPECT_EQ(sampler.Sample(logits, {.params = &params, .num_outputs = 0}), 2);
  EXPECT_EQ(sampler.Sample(logits, {.params = &params, .num_outputs = 1}), 2);
  EXPECT_EQ(sampler.Sample(logits, {.params = &params, .num_outputs = 2}), 1);
}

TEST(SamplerOp, CountsFeedPenaltiesButNotLogprobs) {
  SamplingParams params;
  EXPECT_FALSE(NeedsCounts(params));
  params.temperature = 0;
  params.frequency_penalty = 1.0f;
  EXPECT_TRUE(NeedsCounts(params));
  TokenCounts counts;
  counts.Add(1, false);
  counts.Add(1, true);
  counts.Add(1, true);
  counts.Add(0, true);
  ASSERT_EQ(counts.all().size(), 2u);
  EXPECT_EQ(counts.all()[0].outputs, 2u);
  EXPECT_TRUE(counts.all()[0].in_prompt);
  const std::vector<float> logits = {0, 3, 1.5f};
  Sampler sampler;
  EXPECT_EQ(sampler.Sample(logits, {.params = &params, .counts = &counts}), 2);  // 3 − 2 < 1.5
  const TokenLogprob logprob = sampler.Logprob(logits, 1, 2);
  const double lse = std::log(1 + std::exp(3.0) + std::exp(1.5));
  EXPECT_NEAR(logprob.logprob, 3 - lse, 1e-6);
  EXPECT_EQ(logprob.rank, 1);
  ASSERT_EQ(logprob.top.size(), 2u);
  EXPECT_EQ(logprob.top[0].first, 1);
  EXPECT_EQ(logprob.top[1].first, 2);
  EXPECT_NEAR(logprob.top[1].second, 1.5 - lse, 1e-6);
  EXPECT_TRUE(sampler.Logprob(logits, 0, 0).top.empty());
  EXPECT_EQ(sampler.Logprob(logits, 0, 0).rank, 3);
}

}  // namespace
}  // namespace rootstock
