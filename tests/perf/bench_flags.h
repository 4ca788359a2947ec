// The flags of lora-bench and of each of its commands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/flags/commands.h"
#include "tests/perf/cold_bench.h"
#include "tests/perf/collectives_bench.h"
#include "tests/perf/gpu_ops.h"
#include "tests/perf/step_bench.h"
#include "tests/perf/stream_bench.h"
#include "tests/perf/trace/trace_bench.h"

namespace rootstock {

struct BenchFlags {
  std::string commit = "unknown", machine, out, dtype = "bf16", device = "cpu";
  std::string sharding = "replicated";
  OpsBenchOptions ops;
  StepBenchOptions step;
  ColdBenchOptions cold;
  StreamBenchOptions streams;
  TraceBenchOptions trace;
  CollectivesBenchOptions collectives;
  int32_t np = 0;  // ranks
};

// Tables that write into `flags`, which must outlive them.
std::vector<FlagSpec> CommonFlags(BenchFlags& flags);
std::vector<FlagSpec> OpsFlags(BenchFlags& flags);
std::vector<FlagSpec> StepFlags(BenchFlags& flags);
std::vector<FlagSpec> ColdFlags(BenchFlags& flags);
std::vector<FlagSpec> StreamFlags(BenchFlags& flags);
std::vector<FlagSpec> TraceFlags(BenchFlags& flags);
std::vector<FlagSpec> CollectivesFlags(BenchFlags& flags);

}  // namespace rootstock
