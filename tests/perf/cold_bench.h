// What a cold adapter costs: the request that waits for it, and those that run meanwhile.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "tests/perf/bench_report.h"

namespace rootstock {

struct ColdBenchOptions {
  std::string model;  // Hugging Face directory
  bool dummy_weights = false;
  bool cuda = false;
  DType dtype = DType::kBF16;
  int32_t threads = 0;  // 0: the cores this process may use
  int32_t lora_rank = 16;
  int32_t prompt_tokens = 2048;
  int32_t rows = 64;      // that decode while adapters are loaded
  int32_t context = 256;  // of those
  int32_t steps = 400;    // of those, with and without loads
  int32_t rounds = 11;
};

// One rank without coordinator and link. The rate of a load of a host-resident adapter beside that
// of one copy from pinned memory; first-token time with it on the device, and while it is loaded,
// layer by layer; the steps of other rows with loads beside them and without.
absl::StatusOr<std::vector<BenchResult>> RunColdBench(const ColdBenchOptions& options);

}  // namespace rootstock
