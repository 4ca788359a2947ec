// Single operators on a GPU, against the ceilings measured in the same run.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/perf/bench_report.h"

namespace rootstock {

struct OpsBenchOptions {
  // lora, lora-prefill, attention, sampler, norms; none: all of them.
  std::vector<std::string> parts;
};

// Read bandwidth and the rate of an 8192³ bf16 GEMM first; then each LoRA site of an 8B layer
// against its bytes and the unfused way through cuBLASLt; attention, sampler, norms.
// FAILED_PRECONDITION without a GPU or in a build without CUDA or tests.
absl::StatusOr<std::vector<BenchResult>> RunOpsBench(const OpsBenchOptions& options);

}  // namespace rootstock
