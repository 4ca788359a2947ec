// Cuts a plan's rows into batches of at most max_outputs logit rows.
#pragma once

#include <vector>

#include "common/plan/plan.h"
#include "worker/lora/adapter_table.h"
#include "worker/model/forward.h"
#include "worker/runtime/sequence.h"

namespace rootstock {

// One row of a plan with its slot resolved. Borrowed for the step.
struct StepRow {
  const PlanRow* plan = nullptr;
  Sequence* sequence = nullptr;
  std::vector<int32_t> tokens;  // [query_len]; LastTokenOf(slot) for the one sampled last

  bool samples() const {
    return plan->output == RowOutput::kToken || plan->output == RowOutput::kTokenAndPromptLogprobs;
  }
  bool wants_prompt_logprobs() const {
    return plan->output == RowOutput::kPromptLogprobs ||
           plan->output == RowOutput::kTokenAndPromptLogprobs;
  }
  // Whether the logits after its i-th token are looked at.
  bool wants_logits(uint32_t i) const {
    if (samples() && i + 1 == plan->query_len) return true;
    return wants_prompt_logprobs() && plan->position + i + 1 < sequence->spec.num_prompt_tokens;
  }
};

// Logits row `index` of a batch belongs to the token `token` of row `row`.
struct OutputRef {
  uint32_t row = 0;
  uint32_t token = 0;
};

struct StepBatch {
  ForwardBatch forward;
  std::vector<OutputRef> outputs;  // by logits row
};

// Prompt logprobs want a logits row for each token: a long chunk is run in several batches, one
// after the other, so that the logits' memory stays bounded. The same cut on every tp_rank.
std::vector<StepBatch> CutIntoBatches(const std::vector<StepRow>& rows,
                                      const AdapterTable& adapters, uint32_t page_tokens,
                                      int max_outputs);

// Of all segments.
uint32_t CountDistinctAdapters(const std::vector<StepBatch>& batches);

}  // namespace rootstock
