// What a worker keeps of a sequence, by slot.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "common/plan/plan.h"

namespace rootstock {

// *Step thread only.*
struct Sequence {
  explicit Sequence(NewSequence s) : spec(std::move(s)) {}

  // The row that runs next may start anywhere: before it, shared pages hold the KV.
  bool fresh() const { return !started; }
  const NewSequence spec;
  bool started = false;
  std::vector<uint32_t> page_table;
  uint32_t num_computed = 0;  // positions below it have KV
  bool has_sampled = false;   // for position num_computed, not run yet; the sampler holds it
  uint32_t num_counted = 0;   // positions below it are in the sampler's counts
  // tp_rank 0, between chunks with prompt logprobs: logits [vocab] that predict num_computed.
  std::vector<float> carried_logits;
};

using SequenceTable = std::unordered_map<SequenceSlot, Sequence>;

}  // namespace rootstock
