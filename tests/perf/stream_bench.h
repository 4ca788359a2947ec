// The whole path: concurrent gRPC streams against a running coordinator.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/perf/bench_report.h"

namespace rootstock {

struct StreamBenchOptions {
  std::string address;                // of the coordinator
  std::string base;                   // the base's served name
  std::vector<std::string> adapters;  // registered names; streams take turns
  int streams = 16;
  int prompt_tokens = 128;  // random ids a stream, of [first_id, last_id]
  int first_id = 100;
  int last_id = 16000;
  int max_tokens = 40;
  int rounds = 3;  // base and adapter streams alternate
};

// Decode rate (tokens a second over all streams) of base streams and of adapter streams, while all
// streams of a round decode: from the last first token to the first last one. And milliseconds a
// token of one stream, the cost of adapters as their ratio, the time to the last first token, and
// the rate of prompts that end with their first one.
absl::StatusOr<std::vector<BenchResult>> RunStreamBench(const StreamBenchOptions& options);

}  // namespace rootstock
