// The engine alone: steps of one rank without coordinator and link.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/perf/bench_report.h"
#include "tests/perf/step_rig.h"

namespace rootstock {

struct StepBenchOptions {
  StepRigOptions rig;
  int32_t rounds = 3;  // cases alternate
  // ROWSxADAPTERS, for example 64x8; none: rig.rows without and with rig.adapters.
  std::vector<std::string> cases;
  std::string lora_ranks;  // "16", "8,16,64": of random adapters, in turn
  // A JSON file of lists of rig.context ids: instead of measuring, rows continue them greedily for
  // rig.steps tokens, which go to tokens_out.
  std::string prompts, tokens_out;
};

// Median and p99 of a decode step for each case, beside the same rows without adapters, and the
// prefill rate. On a GPU also the floor of the bytes read, the device's idle share, base rows
// before adapters are loaded, each lora_rank alone, the first step after a load, and the prefill's
// share of what matrix products reach.
absl::StatusOr<std::vector<BenchResult>> RunStepBench(StepBenchOptions options);

}  // namespace rootstock
