// A step that was enqueued and has not completed. Holds all that its completion needs, since slots
// may be released and taken again meanwhile.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/plan/plan.h"
#include "worker/device/device.h"
#include "worker/ops/ops.h"

namespace rootstock {

// Of a StepPlan with rows, for metrics.
struct StepFacts {
  uint32_t tokens = 0;
  uint32_t requests = 0;
  uint32_t prefill_rows = 0;  // with explicit tokens
  uint32_t distinct_adapters = 0;
  uint64_t duration_us = 0;
  LoraKernelStats lora_shrink, lora_expand;  // of all its forward passes
  std::optional<DeviceSpan> span;            // on the device, where that tells
};

// What becomes of one row of logits.
struct PendingOutput {
  enum class Use { kSample, kPromptLogprob, kCarry };  // kCarry: predicts the next chunk's first
  uint32_t row = 0;
  Use use = Use::kSample;
};

struct PendingStep {
  CommandId id;
  std::chrono::steady_clock::time_point start;
  StepFacts facts;
  uint64_t mark = 0;                   // behind the step on the device
  std::vector<RowResult> results;      // [rows], slots filled in
  std::vector<RowOutput> wanted;       // [rows]
  std::vector<PendingOutput> outputs;  // of the batch whose orders are not collected
};

}  // namespace rootstock
