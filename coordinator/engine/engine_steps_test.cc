// Steps and requests of one group: PROTOCOL §2, §3, §5, and what clients see of them.
#include <map>
#include <numeric>
#include <thread>

#include "common/base/status.h"
#include "coordinator/engine/testing/toy_model.h"
#include "coordinator/engine/testing/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int32_t> Prompt(size_t n, int32_t first = 5) {
  std::vector<int32_t> out(n);
  std::iota(out.begin(), out.end(), first);
  for (int32_t& t : out) t %= toy::kVocab;
  return out;
}
TEST(EngineSteps, ThePlanAfterNextIsSentBeforeAResultIsBack) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  group.keep_log = true;
  const auto sent = world.Generate(World::Ask("base", {5, 6, 7}, 4));
  world.Run();
  // Nothing was answered: two plans are out, the second says "the token you sampled last".
  ASSERT_EQ(group.log.size(), 2u);
  EXPECT_THAT(group.log[0].rows[0].tokens, ElementsAre(5, 6, 7));
  EXPECT_EQ(group.log[1].rows[0].position, 3u);
  EXPECT_TRUE(group.log[1].rows[0].tokens.empty());
  EXPECT_TRUE(group.log[1].new_sequences.empty());
  group.CompleteStep();
  world.Run();
  EXPECT_EQ(group.log.size(), 3u);
  world.Settle();
  world.ExpectRight(sent);
  world.ExpectClean();
  // Length is foreseen: no row was wasted.
  EXPECT_EQ(group.rows, 4u);
}

// A new one's prompt waits for none of them to end.
TEST(EngineSteps, MoreSequencesThanDecodeRowsTakeTurns) {
  WorldOptions options;
  options.pool.max_decode_rows = 2;
  World world(options);
  FakeGroup& group = world.AddGroup("g");
  group.keep_log = true;
  std::vector<World::Sent> sent;
  for (int i = 0; i < 5; ++i) {
    sent.push_back(world.Generate(World::Ask("base", {5, 6, 7 + i}, 12)));
    world.Run();
  }
  while (sent.front().heard->tokens[0].size() < 6) {
    world.Run();
    group.CompleteStep();
  }
  const size_t before = group.log.size();
  const auto late = world.Generate(World::Ask("base", {9, 9}, 12));
  for (int steps = 0; steps < 3; ++steps) {  // two were sent before it came
    world.Run();
    group.CompleteStep();
  }
  world.Run();
  EXPECT_EQ(late.heard->tokens[0].size(), 1u);
  world.Settle();
  std::map<uint32_t, size_t> last;  // decode of a slot
  for (size_t step = 0; step < group.log.size(); ++step) {
    size_t decodes = 0;
    for (const PlanRow& row : group.log[step].rows) {
      if (!row.tokens.empty()) continue;
      ++decodes;
      if (step > 6 && step < before) {
        EXPECT_LE(step - last[row.slot.value], 3u) << step;
      }
      last[row.slot.value] = step;
    }
    EXPECT_LE(decodes, 2u);
    if (step > 6 && step < before) {
      EXPECT_EQ(decodes, 2u);
    }
  }
  sent.push_back(late);
  for (const World::Sent& s : sent) world.ExpectRight(s);
  world.ExpectClean();
}

TEST(EngineSteps, TokensAfterAStopAreNeitherDeliveredCountedNorKept) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  int stops = 0;
  for (uint64_t seed = 1000; seed < 1060; ++seed) {
    GenerateRequest r = World::Ask("base", {5, 6, 7}, 40);
    r.ignore_eos = false;
    r.sampling.seed = seed;
    const auto sent = world.Generate(std::move(r));
    world.Settle();
    world.ExpectRight(sent);
    if (sent.heard->finish[0] != FinishReason::kStop) continue;
    ++stops;
    EXPECT_EQ(sent.heard->stop_match[0], "2");
    EXPECT_EQ(sent.heard->tokens[0].back(), toy::kEos);
  }
  EXPECT_GT(stops, 20);
  EXPECT_EQ(group.most_wasted_rows, 1u);
  world.ExpectClean();
}

TEST(EngineSteps, StopIdsEndASample) {
  World world;
  world.AddGroup("g");
  GenerateRequest r = World::Ask("base", {5, 6, 7}, 30);
  const auto all = world.Generate(r);
  world.Settle();
  r.stop_token_ids = {all.heard->tokens[0][3]};
  const auto cut = world.Generate(r);
  world.Settle();
  EXPECT_EQ(cut.heard->finish[0], FinishReason::kStop);
  EXPECT_EQ(cut.heard->stop_match[0], std::to_string(r.stop_token_ids[0]));
  EXPECT_LE(cut.heard->tokens[0].size(), 4u);
  EXPECT_EQ(cut.heard->tokens[0].back(), r.stop_token_ids[0]);
}

TEST(EngineSteps, APromptRunsInChunksBesideDecodes) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  group.keep_log = true;
  const auto decoding = world.Generate(World::Ask("base", {5}, 20));
  world.Run();
  const auto longer = world.Generate(World::Ask("base", Prompt(75), 3));
  world.Settle();
  world.ExpectRight(decoding);
  world.ExpectRight(longer);
  bool together = false;
  for (const StepPlan& plan : group.log) {
    together |=
        plan.rows.size() == 2 && plan.rows[0].query_len == 1 && plan.rows[1].query_len == 31;
  }
  EXPECT_TRUE(together);
  world.ExpectClean();
}

TEST(EngineSteps, CancelFreesPagesWithinTwoSteps) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  const auto sent = world.Generate(World::Ask("base", Prompt(20), 100));
  world.Run();
  group.CompleteStep();
  world.Run();
  EXPECT_GT(world.StatusOf("g").pages_kv, 0u);
  world.engine->Cancel(sent.number);
  world.Run();
  EXPECT_EQ(sent.heard->status.code(), absl::StatusCode::kCancelled);
  group.CompleteStep();
  group.CompleteStep();
  world.Run();
  EXPECT_EQ(group.pending_steps(), 0u);
  EXPECT_EQ(world.StatusOf("g").pages_free, 63u);
  world.Settle();
  EXPECT_EQ(sent.heard->closes, 1);
  world.ExpectClean();
  world.engine->Cancel(sent.number);
  world.engine->Cancel(RequestNumber(12345));
  world.Settle();
}

TEST(EngineSteps, AStopStringEndsTheSampleWhenItIsHeard) {
  World world;
  world.AddGroup("g");
  GenerateRequest r = World::Ask("base", {5, 6}, 60);
  r.n = 2;
  const auto sent = world.Generate(std::move(r));
  world.Run();
  sent.heard->on_stop(0);
  world.Settle();
  EXPECT_TRUE(sent.heard->status.ok());
  EXPECT_LT(sent.heard->tokens[0].size(), 4u);
  EXPECT_EQ(sent.heard->tokens[1], world.ExpectedTokens(sent, 1));
  world.ExpectClean();
}

TEST(EngineSteps, SamplesShareFullPromptPages) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  GenerateRequest r = World::Ask("base", Prompt(30), 6);
  r.n = 4;
  const auto sent = world.Generate(std::move(r));
  world.Run();
  group.CompleteStep();
  world.Run();
  // 30 tokens: 7 full pages shared, a tail and growth for each sample.
  EXPECT_LE(world.StatusOf("g").pages_kv, 7u + 4u * 2u);
  world.Settle();
  world.ExpectRight(sent);
  world.ExpectClean();
  EXPECT_EQ(world.Metric("prompt_tokens_total{source=\"cached\",tenant_class=\"default\"}"), 84);
  // 30 once, then the tail of 2 for each of three.
  EXPECT_EQ(world.Metric("prompt_tokens_total{source=\"computed\",tenant_class=\"default\"}"), 36);
}

TEST(EngineSteps, SamplesWithARepetitionPenaltySendTheirWholePrompt) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  group.keep_log = true;
  GenerateRequest r = World::Ask("base", Prompt(12), 3);
  r.n = 2;
  r.sampling.repetition_penalty = 1.2f;
  const auto sent = world.Generate(std::move(r));
  world.Settle();
  world.ExpectRight(sent);
  for (const StepPlan& plan : group.log) {
    for (const NewSequence& s : plan.new_sequences) {
      const auto row = std::find_if(plan.rows.begin(), plan.rows.end(),
                                    [&](const PlanRow& p) { return p.slot == s.slot; });
      EXPECT_EQ(row->position, 0u);
    }
  }
}

TEST(EngineSteps, PreemptionKeepsEveryTokenAndThePromptsLogprobs) {
  World world;
  FakeGroup& group = world.AddGroup("g", 14);
  std::vector<World::Sent> all;
  for (int i = 0; i < 4; ++i) {
    GenerateRequest r = World::Ask("base", Prompt(9, i), 20);
    r.prompt_logprobs = 0;
    r.logprobs = 0;
    all.push_back(world.Generate(std::move(r)));
  }
  world.Settle();
  for (const auto& sent : all) {
    world.ExpectRight(sent);
    EXPECT_EQ(sent.heard->prompt_logprobs.size(), 8u);
    EXPECT_EQ(sent.heard->logprobs, 20u);
  }
  EXPECT_GT(world.Metric("preemptions_total{reason=\"pages\"}"), 0);
  EXPECT_TRUE(group.violations.empty());
  world.ExpectClean();
}

TEST(EngineSteps, ChunksOfPromptsWithLogprobsAreCutToWhatOneMessageCarries) {
  World world({.limits = {.max_model_len = 512,
                          .max_num_seqs = 24,
                          .max_num_batched_tokens = 8192,
                          .max_logprobs = 320}});
  FakeGroup& group = world.AddGroup("g", 2100);
  std::vector<World::Sent> all;
  for (int i = 0; i < 24; ++i) {
    GenerateRequest r = World::Ask("base", Prompt(160, i), 4);
    r.prompt_logprobs = 320;
    r.logprobs = 320;
    all.push_back(world.Generate(std::move(r)));
  }
  const auto plain = world.Generate(World::Ask("base", Prompt(160, 3), 4));
  world.Settle();
  for (const auto& sent : all) {
    world.ExpectRight(sent);
    EXPECT_EQ(sent.heard->prompt_logprobs.size(), 159u);
    EXPECT_EQ(sent.heard->logprobs, 4u);
  }
  world.ExpectRight(plain);
  EXPECT_GT(group.most_result_bytes, kMaxPromptResultBytes / 2);
  EXPECT_LE(group.most_result_bytes, kMaxPromptResultBytes + kMaxSampledResultBytes);
  world.ExpectClean();
}

TEST(EngineSteps, WhatCanNeverFitIsRefusedWithTheArithmeticAndAnOpenAnswerIsCut) {
  World world;
  world.AddGroup("g", 10);
  const auto big = world.Generate(World::Ask("base", Prompt(10), 40));
  world.Settle();
  EXPECT_EQ(ReasonOf(big.heard->status), Reason::kTooLarge);
  EXPECT_THAT(std::string(big.heard->status.message()), HasSubstr("13 pages"));
  GenerateRequest open = World::Ask("base", Prompt(10), 1);
  open.max_tokens.reset();
  const auto cut = world.Generate(open);
  world.Settle();
  EXPECT_TRUE(cut.heard->status.ok()) << cut.heard->status;
  EXPECT_EQ(cut.heard->tokens[0].size(), 27u);  // 9 pages of 4 hold 36 positions
  EXPECT_EQ(cut.heard->finish[0], FinishReason::kLength);
  world.ExpectClean();
}

TEST(EngineSteps, DeadlinesEndQueuedAndRunningRequests) {
  World world;
  GenerateRequest r = World::Ask("base", {5}, 100);
  r.deadline = world.executor.clock()() + absl::Seconds(5);
  const auto queued = world.Generate(r);  // no group yet
  world.executor.Advance(absl::Seconds(6));
  world.Run();
  EXPECT_EQ(queued.heard->status.code(), absl::StatusCode::kDeadlineExceeded);
  FakeGroup& group = world.AddGroup("g");
  r.deadline = world.executor.clock()() + absl::Seconds(5);
  const auto running = world.Generate(r);
  world.Run();
  group.CompleteStep();
  world.executor.Advance(absl::Seconds(6));
  world.Run();
  EXPECT_EQ(running.heard->status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(world.TryGenerate(r).status().code(), absl::StatusCode::kDeadlineExceeded);
  world.Settle();
  world.ExpectClean();
  EXPECT_EQ(world.Metric("outcome=\"deadline_exceeded\",tenant_class=\"default\"}"), 3);
}

TEST(EngineSteps, DeadlinesOfRequestsThatEndedLeaveNoTimers) {
  World world;
  for (int i = 0; i < 20; ++i) {  // end in the queue
    GenerateRequest r = World::Ask("base", {5}, 1);
    r.deadline = world.executor.clock()() + absl::Hours(1) - absl::Seconds(i);
    const auto sent = world.Generate(std::move(r));
    world.Run();
    world.engine->Cancel(sent.number);
  }
  world.Run();
  EXPECT_EQ(world.executor.timers(), 0u);
  world.AddGroup("g");
  for (int round = 0; round < 100; ++round) {
    std::vector<World::Sent> all;
    for (int i = 0; i < 100; ++i) {
      GenerateRequest r = World::Ask("base", {5}, 1);
      r.deadline = world.executor.clock()() + absl::Hours(1) - absl::Seconds(round % 7 * i);
      all.push_back(world.Generate(std::move(r)));
    }
    world.Settle();
    for (const auto& sent : all) ASSERT_TRUE(sent.heard->done && sent.heard->status.ok());
  }
  EXPECT_EQ(world.executor.timers(), 1u);  // the group's tick
}

TEST(EngineSteps, AFullQueueShedsWithARetryHint) {
  World world({.max_queued = 2});
  world.Generate(World::Ask("base", {5}, 2));
  const auto second = world.Generate(World::Ask("base", {5}, 2));
  const auto third = world.TryGenerate(World::Ask("base", {5}, 2));
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(third.status()), Reason::kQueueFull);
  EXPECT_EQ(GetRetryAfterMs(third.status()), 1000);
  EXPECT_EQ(world.engine->Status().queued, 2u);
  EXPECT_EQ(world.Metric("queue_requests{tenant_class=\"default\"}"), 2);
  world.AddGroup("g");
  world.Settle();
  world.ExpectRight(second);
  EXPECT_EQ(world.Metric("shed_total{reason=\"queue_full\",tenant_class=\"default\"}"), 1);
  EXPECT_EQ(world.Metric("queue_requests{tenant_class=\"default\"}"), 0);
}

TEST(EngineSteps, ADrainingCoordinatorFinishesWhatItHas) {
  World world({.threads = true});
  FakeGroup& group = world.AddGroup("g");
  const auto sent = world.Generate(World::Ask("base", {5}, 10));
  std::thread draining([&] { EXPECT_TRUE(world.engine->Drain(absl::InfiniteFuture()).ok()); });
  while (!world.engine->Status().draining) std::this_thread::yield();
  EXPECT_EQ(ReasonOf(world.TryGenerate(World::Ask("base", {5}, 2)).status()), Reason::kDraining);
  while (!sent.heard->done) group.CompleteAll();
  draining.join();
  world.ExpectRight(sent);
  EXPECT_FALSE(group.left);
}

TEST(EngineSteps, WhatRunsAtTheDrainsDeadlineEndsAsDraining) {
  World world({.limits = {.max_model_len = 64, .max_num_seqs = 1, .max_num_batched_tokens = 16}});
  FakeGroup& group = world.AddGroup("g");
  const auto running = world.Generate(World::Ask("base", {5}, 10));
  const auto in_line = world.Generate(World::Ask("base", {6}, 10));
  world.Run();
  group.CompleteStep();
  world.Run();
  const auto on_its_way = world.Generate(World::Ask("base", {7}, 10));
  EXPECT_EQ(world.engine->Drain(world.executor.clock()()).code(),
            absl::StatusCode::kDeadlineExceeded);
  world.Run();
  for (const auto& sent : {running, in_line, on_its_way}) {
    EXPECT_EQ(sent.heard->status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ReasonOf(sent.heard->status), Reason::kDraining);
    EXPECT_EQ(sent.heard->closes, 1);
  }
  EXPECT_GT(running.heard->tokens[0].size(), 0u);
  world.Settle();
  EXPECT_TRUE(world.engine->Drain(world.executor.clock()()).ok());
  world.ExpectClean();
}

TEST(EngineSteps, AnIdleGroupTicksEverySecond) {
  World world;
  FakeGroup& group = world.AddGroup("g");
  for (int i = 0; i < 5; ++i) {
    world.executor.Advance(absl::Seconds(1));
    world.Settle();
  }
  EXPECT_EQ(group.ticks, 5u);
  EXPECT_EQ(group.rows, 0u);
  EXPECT_TRUE(group.violations.empty());
}

TEST(EngineSteps, BadRequestsAreRefusedAndNothingIsSent) {
  World world;
  world.AddGroup("g");
  GenerateRequest r = World::Ask("base", {5}, 2);
  r.sampling.temperature = -1.0f;
  EXPECT_EQ(world.TryGenerate(r).status().code(), absl::StatusCode::kInvalidArgument);
  r = World::Ask("base", {}, 2);
  EXPECT_EQ(ReasonOf(world.TryGenerate(r).status()), Reason::kEmptyPrompt);
  r = World::Ask("base", Prompt(256), 2);
  EXPECT_EQ(ReasonOf(world.TryGenerate(r).status()), Reason::kContextLength);
  r = World::Ask("bose", {5}, 2);
  EXPECT_EQ(ReasonOf(world.TryGenerate(r).status()), Reason::kUnknownModel);
  EXPECT_EQ(world.groups["g"]->plans, 0u);
  EXPECT_EQ(world.Metric("outcome=\"client_error\",tenant_class=\"default\"}"), 4);
  EXPECT_EQ(world.Metric("adapter_lookup_total{result=\"unknown\"}"), 1);
}

}  // namespace
}  // namespace rootstock
