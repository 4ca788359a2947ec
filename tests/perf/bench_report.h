// How a bench keeps its results: one JSON list, an entry a case (docs/benchmarks).
#pragma once

#include <string>
#include <vector>

#include "tests/perf/gpu_ceilings.h"

namespace rootstock {

struct BenchResult {
  std::string goal;  // number or name of what it is held against; empty: for the record
  std::string name;  // "decode rows=16 context=128 adapters=8"
  double value = 0;
  double bound = 0;    // of the goal
  std::string better;  // "lower" or "higher"
  std::string unit;    // "ms", "ratio"
};

// For the record.
std::vector<BenchResult> CeilingResults(const Ceilings& ceilings);

// Sorts a copy; q in [0, 1].
double Quantile(std::vector<double> values, double q);

// JSON text, an entry a line: each result with machine (empty: this processor), date, commit and
// command.
std::string ReportJson(const std::vector<BenchResult>& results, const std::string& command,
                       const std::string& commit, const std::string& machine);

}  // namespace rootstock
