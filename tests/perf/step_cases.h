// What `lora-bench step` was asked to measure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/perf/step_bench.h"

namespace rootstock {

// "8,16,64": INVALID_ARGUMENT/config_invalid unless each is 1 to 256.
absl::StatusOr<std::vector<int>> ParseLoraRanks(const std::string& text);

// Those of `options`, with the base beside each, and each lora_rank of several alone.
// INVALID_ARGUMENT/config_invalid for what is no ROWSxADAPTERS, or wants adapters that are none.
absl::StatusOr<std::vector<StepCase>> StepCases(const StepBenchOptions& options);

}  // namespace rootstock
