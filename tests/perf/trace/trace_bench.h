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
  // So many, all resident, one after the other: a step has as many different ones as with the many,
  // and nothing comes or goes. 0: no such run.
  int in_turn = 0;
  std::vector<std::string> alphas = {"0.3", "1"};
  std::vector<std::string> cvs = {"1", "4"};
  std::string rate = "0";  // of replays, req/s, without runs at saturation; 0: 90 % of that
  int streams = 32;        // at saturation: requests under way at any time
  int requests = 200;      // of a run; at least two a stream
  int rounds = 3;          // each of other seeds
  int seed = 42;           // of the first
  int seconds = 0;         // after so many no run begins; 0: all do
  int min_length = 8, max_length = 512;  // tokens of prompts and outputs
  int first_id = 100, last_id = 16000;   // of prompts
};

// First each adapter is asked once, so that all have been on the hosts. In every round the few and
// the many of each alpha run alternately (and those in turn, for comparison), in turned order every
// other round: at saturation, then for each cv at 90 % of what the first round's many reached (the
// lowest alpha's). Medians of the rounds' rates, and of their ratios; p99 of the times to first
// token of all rounds together.
absl::StatusOr<std::vector<BenchResult>> RunTraceBench(const TraceBenchOptions& options);

}  // namespace rootstock
