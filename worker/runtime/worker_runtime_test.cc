#include "worker/runtime/worker_runtime.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/base/status.h"
#include "worker/runtime/runtime_rig.h"

namespace rootstock {
namespace {

// A group of one whose collectives are given up at some step.
struct SickCommunicator : ThreadCommunicator {
  SickCommunicator() : ThreadCommunicator(std::make_shared<ThreadGroup>(1), 0) {}
  absl::Status Health() const override { return health; }
  absl::Status health;
};

class RuntimeTest : public testing::Test {
 protected:
  std::unique_ptr<ThreadCommunicator> self_ = ThreadCommunicator::Self();
  Rank rank_{*self_};
  uint64_t finished_ = 0;
};

TEST_F(RuntimeTest, ChunksThenTheTokenSampledLast) {
  const Tokens prompt = Prompt(7);
  StepResult r = rank_.Step(
      {{MakeSequence(3, 7, Greedy())},
       {Row(3, 0, {prompt.begin(), prompt.begin() + 5}, Pages({9, 2}), RowOutput::kNone)}});
  EXPECT_TRUE(r.rows.empty());
  r = rank_.Step({{}, {Row(3, 5, {prompt.begin() + 5, prompt.end()}, {})}});
  ASSERT_EQ(r.rows.size(), 1u);
  EXPECT_EQ(r.rows[0].slot.value, 3u);
  Tokens got = r.rows[0].tokens;
  got.push_back(rank_.Decode(3, 7, 1)[0]);
  got.push_back(rank_.Step({{}, {Row(3, 8, {}, Pages({30}))}}).rows[0].tokens[0]);
  EXPECT_EQ(got, Oracle(prompt, 3));
  EXPECT_EQ(rank_.runtime.last_step().tokens, 1u);
  EXPECT_EQ(rank_.runtime.last_step().prefill_rows, 0u);
}

TEST(Runtime, EveryRankGoesOnFromTheTokenOfRankZero) {
  const Tokens want = Oracle(Prompt(5), 4);
  EXPECT_TRUE(RunOnRanks(3, [&](Communicator& c) -> absl::Status {
                Rank rank(c);
                StepResult r = rank.Step({{MakeSequence(0, 5, Greedy()), MakeSequence(1, 5)},
                                          {Row(1, 0, Prompt(5), Pages({4, 5, 6})),
                                           Row(0, 0, Prompt(5), Pages({1, 2, 3}))}});
                Tokens got;
                for (uint32_t i = 0; i < 3; ++i) {
                  if (c.rank() == 0) got.push_back(r.rows.at(1).tokens.at(0));
                  EXPECT_EQ(r.rows.size(), c.rank() == 0 ? 2u : 0u);
                  r = rank.Step({{}, {Row(1, 5 + i, {}, {}), Row(0, 5 + i, {}, {})}});
                }
                if (c.rank() == 0) {
                  got.push_back(r.rows.at(1).tokens.at(0));
                  EXPECT_EQ(got, want);
                }
                // The KV that each rank wrote holds those tokens: an explicit row shows it.
                return absl::OkStatus();
              }).ok());
}

// The second step goes on from the first's token on every rank, though nothing has been finished.
TEST(Runtime, TokensReachEveryRankWithinTheStep) {
  const Tokens want = Oracle(Prompt(5), 2);
  EXPECT_TRUE(RunOnRanks(2, [&](Communicator& c) -> absl::Status {
                Rank rank(c);
                rank.model.leaves_running = true;
                const StepPlan plans[] = {
                    {{MakeSequence(0, 5, Greedy())}, {Row(0, 0, Prompt(5), Pages({1, 2}))}},
                    {{}, {Row(0, 5, {}, {})}}};
                for (size_t i = 0; i < 2; ++i) {
                  RETURN_IF_ERROR(rank.runtime.Start({CommandId(i), {1, 1}, plans[i]}).status());
                  EXPECT_EQ(rank.model.sampler().last_tokens()[0], want[i]);
                }
                for (int i = 0; i < 2; ++i) RETURN_IF_ERROR(rank.runtime.Finish().status());
                return absl::OkStatus();
              }).ok());
}

// A collective that is given up lets its step end: no token of such a step is delivered, nor of one
// behind it, and the group fails.
TEST(Runtime, AStepOfASickGroupDeliversNothing) {
  SickCommunicator group;
  Rank rank(group);
  rank.model.leaves_running = true;
  const StepPlan plans[] = {{{MakeSequence(0, 5, Greedy())}, {Row(0, 0, Prompt(5), Pages({1, 2}))}},
                            {{}, {Row(0, 5, {}, {})}},
                            {{}, {Row(0, 6, {}, {})}}};
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(rank.runtime.Start({CommandId(i), {1, 1}, plans[i]}).ok());
  }
  ASSERT_TRUE(rank.runtime.Finish().ok());
  group.health = absl::InternalError("a tp_rank did not come to a collective");
  EXPECT_EQ(rank.runtime.Finish().status(), group.health);
  EXPECT_EQ(rank.runtime.Finish().status(), group.health);
}

TEST_F(RuntimeTest, RecreatedSequenceContinuesIdentically) {
  SamplingParams sampling;
  sampling.temperature = 1.3f;
  sampling.frequency_penalty = 0.7f;
  sampling.repetition_penalty = 1.2f;
  const Tokens prompt = Prompt(6);
  StepResult r =
      rank_.Step({{MakeSequence(0, 6, sampling)}, {Row(0, 0, prompt, Pages({1, 2, 3, 4, 5}))}});
  Tokens whole = {r.rows[0].tokens[0]};
  for (const int32_t t : rank_.Decode(0, 6, 10)) whole.push_back(t);

  for (const uint32_t outputs : {1u, 4u, 9u}) {  // replayed after that many outputs
    EXPECT_TRUE(rank_.Run(ReleaseSlots{{SequenceSlot(0)}}).outcome.ok());
    Tokens known = prompt;
    known.insert(known.end(), whole.begin(), whole.begin() + outputs);
    NewSequence again = MakeSequence(0, 6, sampling);
    again.num_tokens = 6 + outputs;
    r = rank_.Step(
        {{again}, {Row(0, 0, {known.begin(), known.begin() + 3}, Pages({20}), RowOutput::kNone)}});
    r = rank_.Step({{}, {Row(0, 3, {known.begin() + 3, known.end()}, Pages({12, 11, 10, 9}))}});
    Tokens rest = {r.rows[0].tokens[0]};
    for (const int32_t t : rank_.Decode(0, 6 + outputs, 10 - outputs)) rest.push_back(t);
    EXPECT_EQ(rest, Tokens(whole.begin() + outputs, whole.end())) << outputs;
  }
}

// Replayed outputs count as outputs: with a strong penalty none of them comes again.
TEST_F(RuntimeTest, ReplayedOutputsCountForPenalties) {
  SamplingParams sampling = Greedy();
  sampling.presence_penalty = 2.0f;
  sampling.logit_bias = {{30, 20.0f}, {31, 19.0f}, {32, 18.0f}};
  NewSequence s = MakeSequence(0, 4, sampling);
  s.num_tokens = 6;
  const StepResult r = rank_.Step({{s}, {Row(0, 0, {5, 31, 7, 8, 30, 32}, Pages({1, 2}))}});
  // 30 → 18 by output, 31 stays 19 though the prompt holds it, give or take logits of ± 3.
  const auto raw = FakeModel::Logits({5, 31, 7, 8, 30, 32});
  const int32_t want = raw[30] + 18 > raw[31] + 19 ? 30 : 31;
  EXPECT_EQ(r.rows[0].tokens[0], want);
}

TEST_F(RuntimeTest, SamplesShareFullPromptPages) {
  const Tokens prompt = Prompt(10);
  const SamplingParams sampling;
  NewSequence first = MakeSequence(0, 10, sampling), second = MakeSequence(1, 10, sampling);
  second.sample_index = 1;
  NewSequence twin = MakeSequence(2, 10, sampling);  // sample index 0 as well
  StepResult r = rank_.Step({{first}, {Row(0, 0, prompt, Pages({1, 2, 3, 4}))}});
  const int32_t token = r.rows[0].tokens[0];
  const Tokens tail(prompt.begin() + 8, prompt.end());
  r = rank_.Step({{second, twin},
                  {Row(1, 8, tail, Pages({1, 2, 13, 14})), Row(2, 8, tail, Pages({1, 2, 23, 24})),
                   Row(0, 10, {}, {})}});
  EXPECT_EQ(r.rows[1].tokens[0], token);
  Tokens zero = {r.rows[2].tokens[0]}, one = {r.rows[0].tokens[0]}, two;
  for (const int32_t t : rank_.Decode(1, 10, 5)) one.push_back(t);
  for (const int32_t t : rank_.Decode(2, 10, 5)) two.push_back(t);
  for (const int32_t t : rank_.Decode(0, 11, 4)) zero.push_back(t);
  EXPECT_EQ(zero, two);
  EXPECT_NE(one, Tokens({token, two[0], two[1], two[2], two[3], two[4]}));
}

TEST_F(RuntimeTest, PenaltiesNeedTheTokensOfSharedPages) {
  SamplingParams sampling = Greedy();
  sampling.repetition_penalty = 5.0f;
  const Tokens prompt = Prompt(10);
  StepResult r =
      rank_.Step({{MakeSequence(0, 10, sampling)}, {Row(0, 0, prompt, Pages({1, 2, 3}))}});
  NewSequence second = MakeSequence(1, 10, sampling);
  const PlanRow row = Row(1, 8, {prompt.begin() + 8, prompt.end()}, Pages({1, 2, 13}));
  const Completion refused = rank_.Run(StepPlan{{second}, {row}});
  EXPECT_EQ(GetErrorDetail(refused.outcome)->field, "rows[0].position");
  // The other penalties do not count a prompt.
  SamplingParams others = Greedy();
  others.frequency_penalty = 0.5f;
  PlanRow third = row;
  third.slot = SequenceSlot(2);
  rank_.Step({{MakeSequence(2, 10, others)}, {third}});
  second.cached_tokens = {prompt.begin(), prompt.begin() + 8};
  EXPECT_EQ(rank_.Step({{second}, {row}}).rows[0].tokens, r.rows[0].tokens);
}

TEST_F(RuntimeTest, LogprobsAreOfTheRawLogits) {
  SamplingParams sampling = Greedy();
  sampling.logprobs = 2;
  sampling.logit_bias = {{17, 30.0f}};
  const Tokens prompt = Prompt(3);
  const StepResult r =
      rank_.Step({{MakeSequence(0, 3, sampling)}, {Row(0, 0, prompt, Pages({1}))}});
  const auto logits = FakeModel::Logits(prompt);
  double sum = 0;
  for (const float l : logits) sum += std::exp(l);
  ASSERT_EQ(r.rows[0].tokens, Tokens{17});
  ASSERT_EQ(r.rows[0].logprobs.size(), 1u);
  EXPECT_EQ(r.rows[0].logprobs[0].token, 17);
  EXPECT_NEAR(r.rows[0].logprobs[0].logprob, logits[17] - std::log(sum), 1e-5);
  ASSERT_EQ(r.rows[0].logprobs[0].top.size(), 2u);
  EXPECT_EQ(r.rows[0].logprobs[0].top[0].first, Oracle(prompt, 1)[0]);
}

// Every prompt token but the first has a predecessor, across chunks and inner batches.
TEST_F(RuntimeTest, PromptLogprobsInChunks) {
  SamplingParams sampling = Greedy();
  sampling.prompt_logprobs = 1;
  const Tokens prompt = Prompt(50);
  NewSequence s = MakeSequence(0, 50, sampling);
  std::vector<PageId> pages;
  for (uint32_t p = 1; p <= 14; ++p) pages.push_back(PageId(p));
  std::vector<TokenLogprob> got;
  const auto take = [&](const StepResult& r) {
    for (const TokenLogprob& l : r.rows.at(0).prompt_logprobs) got.push_back(l);
  };
  take(rank_.Step(
      {{s},
       {Row(0, 0, {prompt.begin(), prompt.begin() + 21}, pages, RowOutput::kPromptLogprobs)}}));
  EXPECT_EQ(got.size(), 20u);
  const StepResult last = rank_.Step(
      {{},
       {Row(0, 21, {prompt.begin() + 21, prompt.end()}, {}, RowOutput::kTokenAndPromptLogprobs)}});
  take(last);
  EXPECT_EQ(last.rows[0].tokens, Oracle(prompt, 1));
  ASSERT_EQ(got.size(), 49u);
  for (size_t i = 0; i < got.size(); ++i) {
    const auto logits = FakeModel::Logits({prompt.begin(), prompt.begin() + i + 1});
    double sum = 0;
    for (const float l : logits) sum += std::exp(l);
    EXPECT_EQ(got[i].token, prompt[i + 1]);
    EXPECT_NEAR(got[i].logprob, logits[prompt[i + 1]] - std::log(sum), 1e-5) << i;
    EXPECT_EQ(got[i].top.size(), 1u);
  }
  EXPECT_GT(rank_.model.forwards, 2);  // 16 outputs a forward at most
  for (const int outputs : rank_.model.outputs_seen) EXPECT_LE(outputs, rank_.model.max_outputs);
}

TEST_F(RuntimeTest, NonfiniteLogitsFailTheirRowAlone) {
  const StepResult r =
      rank_.Step({{MakeSequence(0, 2, Greedy()), MakeSequence(1, 2, Greedy())},
                  {Row(0, 0, {5, FakeModel::kPoison}, Pages({1})), Row(1, 0, {5, 6}, Pages({2}))}});
  EXPECT_TRUE(r.rows[0].nonfinite);
  EXPECT_TRUE(r.rows[0].tokens.empty());
  EXPECT_FALSE(r.rows[1].nonfinite);
  EXPECT_EQ(r.rows[1].tokens, Oracle({5, 6}, 1));
  // The plan that was already on its way still runs.
  rank_.Step({{}, {Row(0, 2, {}, {}), Row(1, 2, {}, {})}});
}

TEST_F(RuntimeTest, MinTokensHoldAcrossReplay) {
  SamplingParams sampling = Greedy();
  sampling.min_tokens = 2;
  sampling.banned_until_min = {9};
  sampling.logit_bias = {{9, 100.0f}};
  const StepResult r =
      rank_.Step({{MakeSequence(0, 2, sampling)}, {Row(0, 0, {5, 6}, Pages({1, 2}))}});
  EXPECT_NE(r.rows[0].tokens[0], 9);
  NewSequence again = MakeSequence(1, 2, sampling);
  again.num_tokens = 4;
  EXPECT_EQ(rank_.Step({{again}, {Row(1, 0, {5, 6, 7, 8}, Pages({3, 4}))}}).rows[0].tokens,
            Tokens{9});
}

TEST_F(RuntimeTest, AttachForgetsSequences) {
  rank_.Step({{MakeSequence(0, 2, Greedy())}, {Row(0, 0, {5, 6}, Pages({1}))}});
  const auto report = rank_.runtime.Attach({2, 1}, {100, 8, 64, 20});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->epoch, (Epoch{2, 1}));
  EXPECT_EQ(report->geometry.num_pages, 64u);
  EXPECT_EQ(rank_.runtime.num_sequences(), 0u);
  EXPECT_FALSE(rank_.Run(StepPlan{{}, {Row(0, 2, {}, {})}}).outcome.ok());
  rank_.Step({{MakeSequence(0, 2, Greedy())}, {Row(0, 0, {5, 6}, Pages({1}))}});
}

// A step is started behind the one that runs, before anybody knows its tokens; a slot may be
// released and taken again meanwhile.
TEST_F(RuntimeTest, StepsLeftRunningFinishInTurn) {
  rank_.model.leaves_running = true;
  uint64_t id = 100;
  const auto start = [&](StepPlan plan) {
    const auto completion = rank_.runtime.Start({CommandId(++id), {1, 1}, std::move(plan)});
    ASSERT_TRUE(completion.ok()) << completion.status();
    EXPECT_FALSE(completion->has_value());
  };
  const auto finish = [&] {
    const auto completion = rank_.runtime.Finish();
    EXPECT_TRUE(completion.ok()) << completion.status();
    EXPECT_EQ(completion->id.value, 100 + ++finished_);
    return completion->step;
  };
  const Tokens a = Prompt(4), b = {9, 8, 7};
  start({{MakeSequence(0, 4, Greedy()), MakeSequence(1, 3, Greedy())},
         {Row(0, 0, a, Pages({1, 2})), Row(1, 0, b, Pages({3, 4}))}});
  start({{}, {Row(0, 4, {}, {}), Row(1, 3, {}, {})}});
  rank_.model.span = DeviceSpan{0.5, 3};
  EXPECT_EQ(rank_.runtime.num_running(), 2u);
  EXPECT_TRUE(rank_.Run(ReleaseSlots{{SequenceSlot(1)}}).outcome.ok());
  StepResult r = finish();
  EXPECT_EQ(rank_.runtime.last_step().span->busy, 3);
  Tokens got = r.rows.at(0).tokens, other = r.rows.at(1).tokens;
  start({{MakeSequence(1, 4, Greedy())}, {Row(1, 0, a, Pages({5, 6})), Row(0, 5, {}, {})}});
  r = finish();
  got.push_back(r.rows.at(0).tokens.at(0));
  other.push_back(r.rows.at(1).tokens.at(0));
  r = finish();
  got.push_back(r.rows.at(1).tokens.at(0));
  EXPECT_EQ(got, Oracle(a, 3));
  EXPECT_EQ(other, Oracle(b, 2));
  EXPECT_EQ(r.rows.at(0).slot.value, 1u);
  EXPECT_EQ(r.rows.at(0).tokens, Oracle(a, 1));
  EXPECT_EQ(rank_.runtime.num_running(), 0u);
  // An attach waits for what runs.
  start({{}, {Row(0, 6, {}, {})}});
  EXPECT_TRUE(rank_.runtime.Attach({2, 1}, {100, 8, 64, 20}).ok());
  EXPECT_EQ(rank_.runtime.num_running(), 0u);
}

TEST_F(RuntimeTest, TickDoesNothing) {
  const Completion tick = rank_.Run(StepPlan{});
  EXPECT_TRUE(tick.outcome.ok());
  EXPECT_EQ(rank_.model.forwards, 0);
}

}  // namespace
}  // namespace rootstock
