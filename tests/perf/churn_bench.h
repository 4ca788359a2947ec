// The whole path while streams come and go: adapters of a step are others than those of the last.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tests/perf/bench_report.h"
#include "tests/perf/stream_bench.h"

namespace rootstock {

// Keeps options.streams streams going until options.rounds times as many have ended: prompts of
// options.prompt_tokens, uniformly 1 to 2 · options.max_tokens - 1 tokens each, the adapters in
// turn. The output's rate; how idle the device was the worker's metrics tell.
absl::StatusOr<std::vector<BenchResult>> RunChurnBench(const StreamBenchOptions& options);

}  // namespace rootstock
