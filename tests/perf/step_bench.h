// The engine alone: steps of one rank without coordinator, link or sampler.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "tests/perf/bench_report.h"

namespace rootstock {

struct StepBenchOptions {
  std::string model;  // Hugging Face directory
  bool dummy_weights = false;
  std::vector<std::string> adapter_dirs;  // PEFT directories, repeated up to `adapters`
  int32_t adapters = 8;
  int32_t rows = 16;
  int32_t context = 128;  // tokens a row before the first measured step
  int32_t steps = 32;     // measured decode steps a round
  int32_t rounds = 3;     // base and LoRA steps alternate
  int32_t threads = 0;    // 0: the cores this process may use
  DType dtype = DType::kBF16;
};

// Median and p99 of a decode step without and with adapters, their ratio, and the prefill rate.
absl::StatusOr<std::vector<BenchResult>> RunStepBench(const StepBenchOptions& options);

}  // namespace rootstock
