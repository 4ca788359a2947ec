#include "coordinator/request/request.h"

#include <cmath>
#include <functional>
#include <limits>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using testing::UnorderedElementsAre;

ServedModel Model() {
  ServedModel m;
  m.name = "base";
  m.vocab_size = 100;
  m.max_model_len = 32;
  m.max_logprobs = 5;
  m.eos_token_ids = {2, 3};
  return m;
}
GenerateRequest Request() {
  GenerateRequest r;
  r.model = "base";
  r.token_ids = std::vector<int32_t>{10, 11, 12};
  return r;
}
absl::StatusOr<ResolvedRequest> ResolveIt(const GenerateRequest& r,
                                          const ServedModel& m = Model()) {
  return Resolve(r, m, r.token_ids.value_or(std::vector<int32_t>{}), nullptr, 77);
}

TEST(Request, EachBadFieldIsNamedWithItsValue) {
  const float nan = std::nanf("");
  const float inf = std::numeric_limits<float>::infinity();
  const struct {
    std::function<void(GenerateRequest&)> change;
    const char* message;
  } cases[] = {
      {[](auto& r) { r.model = ""; }, "model: is required: the base's name, base, or an adapter's"},
      {[](auto& r) { r.max_tokens = -1; }, "max_tokens=-1: "},
      {[](auto& r) { r.max_tokens = 0; }, "max_tokens=0: "},
      {[](auto& r) { r.min_tokens = -2; }, "min_tokens=-2: "},
      {[](auto& r) { r.min_tokens = 5, r.max_tokens = 4; }, "min_tokens=5: "},
      {[](auto& r) { r.sampling.temperature = -0.5f; }, "temperature=-0.5: "},
      {[&](auto& r) { r.sampling.temperature = nan; }, "temperature=nan: "},
      {[&](auto& r) { r.sampling.temperature = inf; }, "temperature=inf: "},
      {[](auto& r) { r.sampling.top_p = 0.0f; }, "top_p=0: "},
      {[](auto& r) { r.sampling.top_p = 1.5f; }, "top_p=1.5: "},
      {[&](auto& r) { r.sampling.top_p = nan; }, "top_p=nan: "},
      {[](auto& r) { r.sampling.top_k = -2; }, "top_k=-2: "},
      {[](auto& r) { r.sampling.min_p = 1.1f; }, "min_p=1.1: "},
      {[](auto& r) { r.sampling.presence_penalty = 2.5f; }, "presence_penalty=2.5: "},
      {[](auto& r) { r.sampling.frequency_penalty = -3.0f; }, "frequency_penalty=-3: "},
      {[](auto& r) { r.sampling.repetition_penalty = 0.0f; }, "repetition_penalty=0: "},
      {[](auto& r) { r.sampling.logit_bias = {{100, 1.0f}}; }, "logit_bias=100: "},
      {[](auto& r) { r.sampling.logit_bias = {{1, 101.0f}}; }, "logit_bias=101: "},
      {[](auto& r) { r.n = 0; }, "n=0: "},
      {[](auto& r) { r.n = 129; }, "n=129: "},
      {[](auto& r) { r.logprobs = 6; }, "logprobs=6: "},
      {[](auto& r) { r.logprobs = -1; }, "logprobs=-1: "},
      {[](auto& r) { r.prompt_logprobs = 6; }, "prompt_logprobs=6: "},
      {[](auto& r) { r.stop_token_ids = {100}; }, "stop_token_ids=100: "},
      {[](auto& r) { r.token_ids = std::vector<int32_t>{1, 100}; }, "token_ids=100: "},
      {[](auto& r) { r.token_ids = std::vector<int32_t>{-1}; }, "token_ids=-1: "},
      {[](auto& r) { r.text = "both"; }, "prompt: exactly one"},
      {[](auto& r) { r.token_ids.reset(); }, "prompt: exactly one"},
      {[](auto& r) { r.request_id = std::string(257, 'x'); }, "request_id=xx"},
      {[](auto& r) { r.tenant = ""; }, "tenant: "},
      {[](auto& r) { r.tenant = "a\nb\x1b[31m"; }, "tenant=a"},
  };
  for (const auto& c : cases) {
    GenerateRequest r = Request();
    c.change(r);
    const absl::Status status = CheckFields(r, Model());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), StartsWith(c.message));
  }
  EXPECT_TRUE(CheckFields(Request(), Model()).ok());
}

TEST(Request, PromptsThatCannotRunAreRefused) {
  GenerateRequest r = Request();
  r.token_ids = std::vector<int32_t>{};
  EXPECT_EQ(GetErrorDetail(ResolveIt(r).status())->reason, Reason::kEmptyPrompt);
  r.token_ids = std::vector<int32_t>(32, 1);
  const absl::Status status = ResolveIt(r).status();
  EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kContextLength);
  EXPECT_THAT(std::string(status.message()), HasSubstr("32"));
  r.token_ids = std::vector<int32_t>(31, 1);
  EXPECT_EQ(ResolveIt(r)->max_tokens, 1u);
}

TEST(Request, DefaultsComeFromTheModelThenFromUs) {
  ServedModel m = Model();
  EXPECT_EQ(ResolveIt(Request(), m)->sampling.temperature, 1.0f);
  m.defaults.temperature = 0.6f;
  m.defaults.top_k = 20;
  m.defaults.top_p = 0.9f;
  m.defaults.repetition_penalty = 1.1f;
  SamplingParams s = ResolveIt(Request(), m)->sampling;
  EXPECT_EQ(s.temperature, 0.6f);
  EXPECT_EQ(s.top_k, 20);
  EXPECT_EQ(s.top_p, 0.9f);
  EXPECT_EQ(s.repetition_penalty, 1.1f);
  GenerateRequest r = Request();
  r.sampling.temperature = 0.0f;
  r.sampling.top_k = -1;
  s = ResolveIt(r, m)->sampling;
  EXPECT_EQ(s.temperature, 0.0f);
  EXPECT_EQ(s.top_k, 0);
  m.defaults.do_sample = false;
  EXPECT_EQ(ResolveIt(Request(), m)->sampling.temperature, 0.0f);
}

TEST(Request, WhatIsAskedGoesBeforeTheModelsDefaults) {
  ServedModel m = Model();
  m.defaults = {.temperature = 0.6f,
                .top_p = 0.9f,
                .min_p = 0.3f,
                .repetition_penalty = 1.1f,
                .top_k = 20,
                .do_sample = false,
                .eos_token_ids = {}};
  GenerateRequest r = Request();
  r.sampling.temperature = 0.5f;
  r.sampling.top_p = 0.75f;
  r.sampling.top_k = 7;
  r.sampling.min_p = 0.125f;
  r.sampling.presence_penalty = -0.5f;
  r.sampling.frequency_penalty = 0.25f;
  r.sampling.repetition_penalty = 1.5f;
  r.sampling.logit_bias = {{3, 2.0f}};
  r.logprobs = 4;
  r.prompt_logprobs = 2;
  const SamplingParams s = ResolveIt(r, m)->sampling;
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_p, 0.75f);
  EXPECT_EQ(s.top_k, 7);
  EXPECT_EQ(s.min_p, 0.125f);
  EXPECT_EQ(s.presence_penalty, -0.5f);
  EXPECT_EQ(s.frequency_penalty, 0.25f);
  EXPECT_EQ(s.repetition_penalty, 1.5f);
  EXPECT_EQ(s.logit_bias, r.sampling.logit_bias);
  EXPECT_EQ(s.logprobs, 4);
  EXPECT_EQ(s.prompt_logprobs, 2);
}

TEST(Request, MaxTokensFillTheContextAndMayNotExceedIt) {
  GenerateRequest r = Request();
  EXPECT_EQ(ResolveIt(r)->max_tokens, 29u);
  EXPECT_FALSE(ResolveIt(r)->max_tokens_asked);
  r.max_tokens = 29;
  EXPECT_EQ(ResolveIt(r)->max_tokens, 29u);
  EXPECT_TRUE(ResolveIt(r)->max_tokens_asked);
  for (const int32_t over : {30, std::numeric_limits<int32_t>::max()}) {
    r.max_tokens = over;
    const absl::Status refused = ResolveIt(r).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(GetErrorDetail(refused)->reason, Reason::kContextLength);
    EXPECT_EQ(refused.message(), "max_tokens=" + std::to_string(over) +
                                     ": with the prompt's 3 tokens it exceeds the context of 32");
  }
  r.max_tokens = 4;
  EXPECT_EQ(ResolveIt(r)->max_tokens, 4u);
  EXPECT_EQ(ResolveIt(r)->max_positions(), 6u);
  r.max_tokens.reset();
  r.min_tokens = 30;
  EXPECT_FALSE(ResolveIt(r).ok());
}

TEST(Request, ACallThatEndsAtItsDeadlineOrAsEarlyAsTheWireMakesItEndedByIt) {
  const absl::Time arrived = absl::FromUnixSeconds(1000);
  const auto ended = [&](absl::Duration timeout, absl::Duration after) {
    return EndedByDeadline(arrived, arrived + timeout, arrived + after);
  };
  EXPECT_TRUE(ended(absl::Seconds(10), absl::Seconds(10)));
  EXPECT_TRUE(ended(absl::Seconds(10), absl::Seconds(11)));
  EXPECT_TRUE(ended(absl::Seconds(10), absl::Seconds(9.85)));
  EXPECT_FALSE(ended(absl::Seconds(10), absl::Seconds(9)));
  EXPECT_TRUE(ended(absl::Milliseconds(500), absl::Milliseconds(470)));
  EXPECT_FALSE(ended(absl::Milliseconds(500), absl::Milliseconds(400)));
  EXPECT_TRUE(ended(-absl::Seconds(1), absl::ZeroDuration()));
  EXPECT_FALSE(ended(absl::InfiniteDuration(), absl::Hours(1000)));
}

TEST(Request, TheSeedIsTheAskedOneOrTheDrawnOne) {
  GenerateRequest r = Request();
  EXPECT_EQ(ResolveIt(r)->seed, 77u);
  r.sampling.seed = 0;
  EXPECT_EQ(ResolveIt(r)->seed, 0u);
}

TEST(Request, StopsAreBannedUntilMinTokens) {
  GenerateRequest r = Request();
  r.stop_token_ids = {50, 2};
  EXPECT_TRUE(ResolveIt(r)->sampling.banned_until_min.empty());
  r.min_tokens = 2;
  EXPECT_THAT(ResolveIt(r)->sampling.banned_until_min, ElementsAre(2, 3, 50));
  r.ignore_eos = true;
  EXPECT_THAT(ResolveIt(r)->sampling.banned_until_min, ElementsAre(50, 2));
}

TEST(Finish, EosStopIdsAndLength) {
  GenerateRequest r = Request();
  r.max_tokens = 4;
  r.stop_token_ids = {50};
  ResolvedRequest q = *ResolveIt(r);
  EXPECT_EQ(CheckFinish(q, 1, 10).reason, FinishReason::kNone);
  EXPECT_EQ(CheckFinish(q, 1, 3).reason, FinishReason::kStop);
  EXPECT_EQ(CheckFinish(q, 1, 50).stop_match, "50");
  EXPECT_EQ(CheckFinish(q, 4, 10).reason, FinishReason::kLength);
  EXPECT_EQ(CheckFinish(q, 4, 2).reason, FinishReason::kStop);
  r.ignore_eos = true;
  q = *ResolveIt(r);
  EXPECT_EQ(CheckFinish(q, 1, 3).reason, FinishReason::kNone);
  r.min_tokens = 2;
  q = *ResolveIt(r);
  EXPECT_EQ(CheckFinish(q, 2, 50).reason, FinishReason::kNone);
  EXPECT_EQ(CheckFinish(q, 3, 50).reason, FinishReason::kStop);
}

TEST(Request, MinTokensBansWhatWouldEndTheAnswer) {
  GenerateRequest r = Request();
  r.stop_token_ids = {50, 2};
  EXPECT_TRUE(ResolveIt(r)->sampling.banned_until_min.empty());
  r.min_tokens = 2;
  auto q = *ResolveIt(r);
  EXPECT_EQ(q.sampling.min_tokens, 2u);
  EXPECT_THAT(q.sampling.banned_until_min, UnorderedElementsAre(2, 3, 50));
  r.ignore_eos = true;  // the client wants them then
  EXPECT_THAT(ResolveIt(r)->sampling.banned_until_min, UnorderedElementsAre(2, 50));
}

}  // namespace
}  // namespace rootstock
