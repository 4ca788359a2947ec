#include "tests/perf/first_token_bench.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/perf/stream_request.h"

namespace rootstock {
namespace {

constexpr double kMostTimes = 10;  // a miss over a hit; an engine that swaps slots takes 100
constexpr int kTokens = 4;

}  // namespace

absl::StatusOr<std::vector<BenchResult>> RunFirstTokenBench(const StreamBenchOptions& options) {
  if (options.adapters.size() < 2) {
    return InvalidField(Reason::kInvalidArgument, "name", "", "must be given twice at least");
  }
  StreamBenchOptions one = options;
  one.max_tokens = kTokens;
  const auto stub = v1::Inference::NewStub(
      grpc::CreateChannel(options.address, grpc::InsecureChannelCredentials()));
  std::mt19937 random(1);
  // Milliseconds to the first token of a request to each of `models` in turn, `rounds` times.
  const auto times = [&](const std::vector<std::string>& models,
                         size_t requests) -> absl::StatusOr<std::vector<double>> {
    std::vector<double> out;
    for (size_t i = 0; i < requests; ++i) {
      const auto request = MakeStreamRequest(one, models[i % models.size()], random);
      const auto start = std::chrono::steady_clock::now();
      ASSIGN_OR_RETURN(const Arrivals arrivals, RunStream(*stub, request));
      out.push_back(std::chrono::duration<double, std::milli>(arrivals.front() - start).count());
    }
    return out;
  };
  const size_t requests = options.adapters.size() * options.rounds;
  RETURN_IF_ERROR(times(options.adapters, options.adapters.size()).status());
  ASSIGN_OR_RETURN(const auto base, times({options.base}, requests));
  RETURN_IF_ERROR(times({options.adapters[0]}, 1).status());
  ASSIGN_OR_RETURN(const auto hits, times({options.adapters[0]}, requests));
  ASSIGN_OR_RETURN(const auto turns, times(options.adapters, requests));
  const std::string name = absl::StrCat("first token, prompt=", options.prompt_tokens);
  const std::string all = absl::StrCat(name, " ", options.adapters.size(), " adapters in turn");
  std::vector<BenchResult> results;
  const auto add = [&](const std::string& of, const std::vector<double>& ms) {
    results.push_back({"", of + ", median", Quantile(ms, 0.5), 0, "lower", "ms"});
    results.push_back({"", of + ", p99", Quantile(ms, 0.99), 0, "lower", "ms"});
  };
  add(name + " base", base);
  add(name + " one adapter", hits);
  add(all, turns);
  results.push_back({"first token", all + " over one", Quantile(turns, 0.5) / Quantile(hits, 0.5),
                     kMostTimes, "lower", "ratio"});
  results.push_back({"first token", all + " over one, p99 over median",
                     Quantile(turns, 0.99) / Quantile(hits, 0.5), kMostTimes, "lower", "ratio"});
  return results;
}

}  // namespace rootstock
