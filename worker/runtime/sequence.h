// What a worker keeps of a sequence, by slot.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/plan/plan.h"
#include "worker/ops/sampler.h"

namespace rootstock {

// *Step thread only.*
struct Sequence {
  explicit Sequence(NewSequence s) : spec(std::move(s)) {}

  // The row that runs next may start anywhere: before it, shared pages hold the KV.
  bool fresh() const { return !started; }
  // Counts the token at `position` for penalties unless that was done already.
  void Count(uint32_t position, int32_t token);

  const NewSequence spec;
  bool started = false;
  std::vector<uint32_t> page_table;
  uint32_t num_computed = 0;       // positions below it have KV
  std::optional<int32_t> sampled;  // for position num_computed, not run yet
  TokenCounts counts;
  uint32_t num_counted = 0;  // positions below it are in counts
  // tp_rank 0, between chunks with prompt logprobs: logits [vocab] that predict num_computed.
  std::vector<float> carried_logits;
};

using SequenceTable = std::unordered_map<SequenceSlot, Sequence>;

}  // namespace rootstock
