#include "tests/perf/churn_bench.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/perf/stream_request.h"

namespace rootstock {
namespace {

std::vector<v1::GenerateRequest> MakeRequests(const StreamBenchOptions& options) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> length(1, 2 * options.max_tokens - 1);
  std::vector<v1::GenerateRequest> requests;
  StreamBenchOptions one = options;
  for (int i = 0; i < options.streams * options.rounds; ++i) {
    one.max_tokens = length(random);
    requests.push_back(
        MakeStreamRequest(one, options.adapters[i % options.adapters.size()], random));
  }
  return requests;
}

}  // namespace

absl::StatusOr<std::vector<BenchResult>> RunChurnBench(const StreamBenchOptions& options) {
  const auto stub = v1::Inference::NewStub(
      grpc::CreateChannel(options.address, grpc::InsecureChannelCredentials()));
  const std::vector<v1::GenerateRequest> requests = MakeRequests(options);
  std::vector<absl::Status> outcomes(requests.size());
  std::atomic<size_t> next = 0;
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < options.streams; ++i) {
    threads.emplace_back([&] {
      for (size_t r = next++; r < requests.size(); r = next++) {
        outcomes[r] = RunStream(*stub, requests[r]).status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  double tokens = 0;
  for (size_t r = 0; r < requests.size(); ++r) {
    if (!outcomes[r].ok()) return outcomes[r];
    tokens += requests[r].max_tokens();
  }
  const std::string name =
      absl::StrCat("streams=", options.streams, " that come and go, prompt=", options.prompt_tokens,
                   " adapters=", options.adapters.size());
  return std::vector<BenchResult>{
      {"", name + ", ended", static_cast<double>(requests.size()), 0, "higher", "streams"},
      {"", name + ", output", tokens / took.count(), 0, "higher", "tokens/s"},
  };
}

}  // namespace rootstock
