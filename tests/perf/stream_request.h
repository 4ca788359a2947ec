// One gRPC stream of a bench.
#pragma once

#include <random>
#include <string>

#include "absl/status/statusor.h"
#include "rootstock/v1/inference.grpc.pb.h"
#include "tests/perf/stream_bench.h"
#include "tests/perf/stream_rate.h"

namespace rootstock {

// Greedy, a prompt of random ids, exactly options.max_tokens tokens.
v1::GenerateRequest MakeStreamRequest(const StreamBenchOptions& options, const std::string& model,
                                      std::mt19937& random);
absl::StatusOr<Arrivals> RunStream(v1::Inference::Stub& stub, const v1::GenerateRequest& request);

}  // namespace rootstock
