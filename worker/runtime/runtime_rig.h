// Test peers of the runtime: a tp_rank on the fake model, and short ways to write plans.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker/parallel/thread_communicator.h"
#include "worker/runtime/fake_model.h"
#include "worker/runtime/finish_load.h"
#include "worker/runtime/worker_runtime.h"

namespace rootstock {

using Tokens = std::vector<int32_t>;

inline std::vector<PageId> Pages(std::initializer_list<uint32_t> ids) {
  std::vector<PageId> out;
  for (const uint32_t id : ids) out.push_back(PageId(id));
  return out;
}

inline Tokens Prompt(int n) {
  Tokens out(n);
  std::iota(out.begin(), out.end(), 5);
  return out;
}

inline NewSequence MakeSequence(uint32_t slot, uint32_t prompt, SamplingParams sampling = {}) {
  NewSequence s;
  s.slot = SequenceSlot(slot);
  s.num_prompt_tokens = s.num_tokens = prompt;
  s.sampling = std::move(sampling);
  s.seed = 42;
  return s;
}

inline SamplingParams Greedy() {
  SamplingParams p;
  p.temperature = 0;
  return p;
}

inline PlanRow Row(uint32_t slot, uint32_t position, Tokens tokens, std::vector<PageId> pages,
                   RowOutput output = RowOutput::kToken) {
  const auto length = static_cast<uint32_t>(tokens.empty() ? 1 : tokens.size());
  return {SequenceSlot(slot), length, position, std::move(tokens), std::move(pages), output};
}

// One tp_rank with everything it needs.
class Rank {
 public:
  explicit Rank(Communicator& communicator)
      : model(communicator.rank()), runtime(model, communicator) {
    const auto report = runtime.Attach({1, 1}, {150, 16, 64, 20});
    EXPECT_TRUE(report.ok());
  }
  Completion Run(decltype(Command::kind) kind) {
    const CommandId id(++commands_);
    auto completion = runtime.Start({id, {1, 1}, std::move(kind)});
    EXPECT_TRUE(completion.ok()) << completion.status();
    if (!completion->has_value()) return {id, FinishLoad(runtime, id), {}};
    return **completion;
  }
  // Left running.
  CommandId Begin(decltype(Command::kind) kind) {
    const CommandId id(++commands_);
    const auto completion = runtime.Start({id, {1, 1}, std::move(kind)});
    EXPECT_TRUE(completion.ok() && !completion->has_value());
    return id;
  }
  StepResult Step(StepPlan plan) {
    const Completion completion = Run(std::move(plan));
    EXPECT_TRUE(completion.outcome.ok()) << completion.outcome;
    return completion.step;
  }
  // The slot's tokens one a step, from its pending sampled token on; pages cover them.
  Tokens Decode(uint32_t slot, uint32_t position, int n) {
    Tokens out;
    for (int i = 0; i < n; ++i) {
      const StepResult result = Step({{}, {Row(slot, position + i, {}, {})}});
      out.push_back(result.rows.at(0).tokens.at(0));
    }
    return out;
  }
  FakeModel model;
  WorkerRuntime runtime;

 private:
  uint64_t commands_ = 0;
};

// What the model says, without runtime: greedy, one token after the other.
inline Tokens Oracle(Tokens tokens, int n, std::vector<std::pair<uint64_t, float>> adapters = {}) {
  Tokens out;
  for (int i = 0; i < n; ++i) {
    const auto logits = FakeModel::Logits(tokens, adapters);
    out.push_back(
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    tokens.push_back(out.back());
  }
  return out;
}

}  // namespace rootstock
