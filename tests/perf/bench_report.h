// How a bench keeps its results: one JSON list, an entry a case (docs/benchmarks).
#pragma once

#include <string>
#include <vector>

namespace rootstock {

struct BenchResult {
  std::string goal;  // what it is held against; empty: a figure for the record
  std::string name;  // "decode rows=16 context=128 adapters=8"
  double value = 0;
  double bound = 0;    // of the goal
  std::string better;  // "lower" or "higher"
  std::string unit;    // "ms", "ratio"
};

// Sorts a copy; q in [0, 1].
double Quantile(std::vector<double> values, double q);

// JSON text: each result with machine, date, commit and command.
std::string ReportJson(const std::vector<BenchResult>& results, const std::string& command,
                       const std::string& commit);

}  // namespace rootstock
