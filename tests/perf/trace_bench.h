// No cliff (goal 9): S-LoRA's trace over many adapters beside the same work on a few resident ones.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/perf/bench_report.h"

namespace rootstock {

struct TraceBenchOptions {
  std::string address;             // of the coordinator
  std::vector<std::string> names;  // registered adapters, more than fit on the device
  int resident = 8;                // the first of them are the few
  std::vector<std::string> alphas = {"0.3", "1"};
  std::vector<std::string> cvs = {"1", "4"};
  int streams = 32;                      // at saturation: requests under way at any time
  int requests = 200;                    // of a round, and of a run at 90 % of saturation
  int rounds = 3;                        // the many and the few alternate
  int min_length = 8, max_length = 512;  // tokens of prompts and outputs
  int first_id = 100, last_id = 16000;   // of prompts
};

// For each alpha: requests a second at saturation (medians) of the many and the few, and their
// ratio. For each alpha and cv: p99 of the time to first token of both at 90 % of the many's
// saturation, and their ratio.
absl::StatusOr<std::vector<BenchResult>> RunTraceBench(const TraceBenchOptions& options);

}  // namespace rootstock
