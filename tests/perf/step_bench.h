// The engine alone: steps of one rank without coordinator, link or sampler.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "tests/perf/bench_report.h"

namespace rootstock {

struct StepBenchOptions {
  std::filesystem::path model;
  bool dummy_weights = false;
  std::vector<std::filesystem::path> adapter_dirs;  // PEFT directories, repeated up to `adapters`
  int adapters = 8;
  int rows = 16;
  int context = 128;  // tokens a row before the first measured step
  int steps = 32;     // measured decode steps a round
  int rounds = 3;     // base and LoRA steps alternate
  int threads = 0;    // 0: the cores this process may use
  DType dtype = DType::kBF16;
};

// Median and p99 of a decode step without and with adapters, their ratio, and the prefill rate.
absl::StatusOr<std::vector<BenchResult>> RunStepBench(const StepBenchOptions& options);

}  // namespace rootstock
