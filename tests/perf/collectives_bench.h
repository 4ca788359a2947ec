// Collectives between GPUs: our own algorithms beside NCCL, in graphs.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tests/perf/bench_report.h"

namespace rootstock {

struct CollectivesBenchOptions {
  std::vector<int32_t> kib = {8, 32, 128, 512, 2048, 8192};  // payloads of a sum
  int32_t rounds = 30;  // replays of each graph; algorithms alternate
};

// Among the ranks of the MPI job, a GPU each; every rank calls it, tp_rank 0's results are given,
// the others' are empty. Median microseconds of an all-reduce of bf16 in a graph, by algorithm.
absl::StatusOr<std::vector<BenchResult>> RunCollectivesBench(
    const CollectivesBenchOptions& options);

}  // namespace rootstock
