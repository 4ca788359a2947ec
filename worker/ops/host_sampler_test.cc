#include "worker/ops/host_sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace rootstock {
namespace {

class HostSamplerTest : public testing::Test {
 protected:
  void Prepare(int vocab) { ASSERT_TRUE(sampler_.Prepare({2, 4, 5, vocab}).ok()); }
  SampleOutcome One(const std::vector<float>& logits, SampleOrder order) {
    order.params = &params_;
    EXPECT_TRUE(sampler_.Sample(logits.data(), {&order, 1}).ok());
    return sampler_.Collect()->front();
  }
  // Another rank chose `token` for slot 0.
  void FollowOne(int32_t token, SampleOrder order = {}) {
    order.params = &params_;
    sampler_.chosen()[0] = token;
    EXPECT_TRUE(sampler_.Follow({&order, 1}).ok());
  }
  HostSampler sampler_;
  SamplingParams params_;
};

TEST_F(HostSamplerTest, SameKeySameTokenWhateverRanBefore) {
  std::vector<float> logits(500);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i));
  Prepare(500);
  const auto draw = [&](uint32_t slot, uint32_t position) {
    return One(logits, {.slot = slot, .seed = 77, .position = position}).token;
  };
  std::vector<int32_t> forward, backward;
  for (uint32_t p = 0; p < 50; ++p) forward.push_back(draw(0, p));
  for (uint32_t p = 50; p-- > 0;) backward.insert(backward.begin(), draw(1, p));
  EXPECT_EQ(forward, backward);
  EXPECT_NE(forward, std::vector<int32_t>(50, forward[0]));
  EXPECT_EQ(sampler_.last_tokens()[0], forward[49]);
  EXPECT_EQ(sampler_.last_tokens()[1], backward[0]);
}

TEST_F(HostSamplerTest, MinTokensBansUntilReached) {
  params_.temperature = 0;
  params_.min_tokens = 2;
  params_.banned_until_min = {1};
  const std::vector<float> logits = {0, 5, 4};
  Prepare(3);
  EXPECT_EQ(One(logits, {.num_outputs = 0}).token, 2);
  EXPECT_EQ(One(logits, {.num_outputs = 1}).token, 2);
  EXPECT_EQ(One(logits, {.num_outputs = 2}).token, 1);
}

TEST_F(HostSamplerTest, CountsFeedPenaltiesButNotLogprobs) {
  EXPECT_FALSE(NeedsCounts(params_));
  params_.temperature = 0;
  params_.frequency_penalty = 1.0f;
  EXPECT_TRUE(NeedsCounts(params_));
  Prepare(3);
  const std::vector<float> logits = {0, 3, 1.5f};
  const std::vector<int32_t> one = {1}, outputs = {1, 1, 0};
  sampler_.Begin(0, true);
  sampler_.Count(0, one, false);
  EXPECT_EQ(One(logits, {.slot = 0}).token, 1);  // a prompt's token is no output; now it is one
  sampler_.Begin(0, true);
  sampler_.Count(0, outputs, true);
  EXPECT_EQ(One(logits, {.slot = 0}).token, 2);  // 3 − 2 < 1.5
  EXPECT_EQ(One(logits, {.slot = 1}).token, 1);  // counts nothing
  const TokenLogprob logprob = One(logits, {.given = 1, .num_top = 2}).logprob;
  const double lse = std::log(1 + std::exp(3.0) + std::exp(1.5));
  EXPECT_NEAR(logprob.logprob, 3 - lse, 1e-6);
  EXPECT_EQ(logprob.rank, 1);
  ASSERT_EQ(logprob.top.size(), 2u);
  EXPECT_EQ(logprob.top[0].first, 1);
  EXPECT_EQ(logprob.top[1].first, 2);
  EXPECT_NEAR(logprob.top[1].second, 1.5 - lse, 1e-6);
  EXPECT_TRUE(One(logits, {.given = 0, .num_top = 0}).logprob.top.empty());
  EXPECT_EQ(One(logits, {.given = 0, .num_top = 0}).logprob.rank, 3);
}

TEST_F(HostSamplerTest, SampledTokensCountFromThenOn) {
  params_.temperature = 0;
  params_.presence_penalty = 2.0f;
  Prepare(3);
  sampler_.Begin(1, true);
  const std::vector<float> logits = {0, 3, 2};
  EXPECT_EQ(One(logits, {.slot = 1}).token, 1);
  EXPECT_EQ(One(logits, {.slot = 1}).token, 2);
  sampler_.Begin(1, true);
  EXPECT_EQ(One(logits, {.slot = 1}).token, 1);
}

TEST_F(HostSamplerTest, ARowThatIsNotFiniteHasNoTokenAndAStandIn) {
  Prepare(3);
  FollowOne(2);
  const SampleOutcome out = One({0, std::numeric_limits<float>::quiet_NaN(), 1}, {.num_top = 1});
  EXPECT_EQ(out.token, -1);
  EXPECT_TRUE(out.nonfinite);
  EXPECT_EQ(sampler_.last_tokens()[0], 0);
}

TEST_F(HostSamplerTest, FollowsWhatAnotherRankChose) {
  Prepare(3);
  FollowOne(2);
  EXPECT_EQ(sampler_.last_tokens()[0], 2);
  FollowOne(1, {.given = 1});
  FollowOne(1, {.keep_logits = true});
  EXPECT_EQ(sampler_.last_tokens()[0], 2);  // nothing was sampled
  FollowOne(-1);
  EXPECT_EQ(sampler_.last_tokens()[0], 0);  // the stand-in
}

TEST_F(HostSamplerTest, OrdersAreCollectedInTurn) {
  params_.temperature = 0;
  Prepare(2);
  const std::vector<float> a = {1, 0}, b = {0, 1};
  const SampleOrder order{.params = &params_};
  const SampleOrder kept{.params = &params_, .keep_logits = true};
  ASSERT_TRUE(sampler_.Sample(a.data(), {&order, 1}).ok());
  ASSERT_TRUE(sampler_.Sample(b.data(), {&kept, 1}).ok());
  EXPECT_EQ(sampler_.Collect()->front().token, 0);
  EXPECT_EQ(sampler_.Collect()->front().logits, b);
  EXPECT_EQ(sampler_.last_tokens()[0], 0);
}

}  // namespace
}  // namespace rootstock
