// The parts of `lora-bench ops`.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "kernels/linear/cuda_bench.h"
#include "kernels/linear/linear_cuda.h"
#include "tests/perf/bench_report.h"
#include "tests/perf/gpu_ceilings.h"

namespace rootstock {

// One more node in a graph, on an H200.
inline constexpr double kGraphNodeUs = 0.95;

// Each appends its results. *One thread.*
void BenchLoraSites(const Ceilings& ceilings, kernels::cuda::Linear& linear, bool prefill,
                    std::vector<BenchResult>& results);
void BenchAttention(const Ceilings& ceilings, std::vector<BenchResult>& results);
void BenchSampler(const Ceilings& ceilings, std::vector<BenchResult>& results);
void BenchNorms(const Ceilings& ceilings, kernels::cuda::Linear& linear,
                std::vector<BenchResult>& results);
// What it costs that up to 64 rows a row's bits depend on that row alone.
void BenchEqualBits(std::vector<BenchResult>& results);

// µs a call of `enqueue(i, stream)` in a graph of `count` calls, i = 0 … count - 1. NaN, with a
// message on stderr, where it fails.
inline double MicrosecondsEach(int count,
                               const std::function<std::string(int, cudaStream_t)>& enqueue) {
  const double us = kernels::cuda::GraphTime([&](cudaStream_t stream) {
    std::string error;
    for (int i = 0; i < count && error.empty(); ++i) error = enqueue(i, stream);
    return error;
  });
  return us < 0 ? std::nan("") : us / count;
}

}  // namespace rootstock
