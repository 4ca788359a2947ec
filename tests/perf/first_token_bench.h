// Time to the first token while the adapters of a running coordinator exceed what its group holds.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/perf/bench_report.h"
#include "tests/perf/stream_bench.h"

namespace rootstock {

// One request at a time: to the base, to one adapter over and over, to all adapters in turn (the
// one that comes next is the one whose use lies longest back). Median and 99th percentile, and how
// much more the turns take.
absl::StatusOr<std::vector<BenchResult>> RunFirstTokenBench(const StreamBenchOptions& options);

}  // namespace rootstock
