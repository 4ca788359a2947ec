#include "tests/perf/stream_bench.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <latch>
#include <memory>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "rootstock/v1/inference.grpc.pb.h"

namespace rootstock {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// When each token of one stream came.
struct Arrivals {
  absl::Status status;
  std::vector<Clock::time_point> tokens;
};

// What a round of concurrent streams showed.
struct Round {
  double tokens_per_second = 0;  // while all decode
  double first_tokens = 0;       // seconds until every stream has its first
};

v1::GenerateRequest MakeRequest(const StreamBenchOptions& options, const std::string& model,
                                std::mt19937& random) {
  v1::GenerateRequest request;
  request.set_model(model);
  std::uniform_int_distribution<int> id(options.first_id, options.last_id);
  for (int i = 0; i < options.prompt_tokens; ++i) request.mutable_token_ids()->add_ids(id(random));
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(options.max_tokens);
  request.set_ignore_eos(true);
  request.set_echo_token_ids(true);
  return request;
}

Arrivals RunStream(v1::Inference::Stub& stub, const v1::GenerateRequest& request) {
  Arrivals arrivals;
  grpc::ClientContext context;
  const auto reader = stub.Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    const auto now = Clock::now();
    arrivals.tokens.insert(arrivals.tokens.end(), response.delta().token_ids_size(), now);
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) {
    arrivals.status = absl::UnavailableError(absl::StrCat("generate: ", status.error_message()));
  } else if (arrivals.tokens.size() != static_cast<size_t>(request.max_tokens())) {
    arrivals.status = absl::InternalError(absl::StrCat(
        "a stream of ", request.max_tokens(), " tokens ended after ", arrivals.tokens.size()));
  }
  return arrivals;
}

absl::StatusOr<Round> Summarise(const std::vector<Arrivals>& streams, Clock::time_point start) {
  Clock::time_point begin = start, end = Clock::time_point::max();
  for (const Arrivals& stream : streams) {
    RETURN_IF_ERROR(stream.status);
    begin = std::max(begin, stream.tokens.front());
    end = std::min(end, stream.tokens.back());
  }
  if (begin >= end) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInvalidArgument, "max-tokens",
                     "", "a stream ended before another began: give more tokens");
  }
  size_t tokens = 0;
  for (const Arrivals& stream : streams) {
    tokens += std::count_if(stream.tokens.begin(), stream.tokens.end(),
                            [&](Clock::time_point t) { return t > begin && t <= end; });
  }
  return Round{static_cast<double>(tokens) / Seconds(end - begin), Seconds(begin - start)};
}

// All streams at once; stream i asks models[i % size].
absl::StatusOr<Round> RunRound(const StreamBenchOptions& options,
                               const std::vector<std::string>& models, v1::Inference::Stub& stub,
                               std::mt19937& random) {
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < options.streams; ++i) {
    requests.push_back(MakeRequest(options, models[i % models.size()], random));
  }
  std::vector<Arrivals> streams(requests.size());
  std::vector<std::thread> threads;
  std::latch go(1);  // no stream is ahead by the time that threads take to start
  for (size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] {
      go.wait();
      streams[i] = RunStream(stub, requests[i]);
    });
  }
  const auto start = Clock::now();
  go.count_down();
  for (std::thread& thread : threads) thread.join();
  return Summarise(streams, start);
}

struct Medians {
  double tokens_per_second = 0;
  double first_tokens = 0;
};

Medians MedianOf(const std::vector<Round>& rounds) {
  std::vector<double> rates, firsts;
  for (const Round& round : rounds) {
    rates.push_back(round.tokens_per_second);
    firsts.push_back(round.first_tokens);
  }
  return {Quantile(rates, 0.5), Quantile(firsts, 0.5)};
}

}  // namespace

absl::StatusOr<std::vector<BenchResult>> RunStreamBench(const StreamBenchOptions& options) {
  if (options.streams < 1 || options.prompt_tokens < 1 || options.max_tokens < 4 ||
      options.rounds < 1 || options.adapters.empty() || options.last_id < options.first_id) {
    return InvalidField(Reason::kConfigInvalid, "streams, prompt-tokens, rounds, name, last-id", "",
                        "must be positive, max-tokens at least 4, last-id at least first-id");
  }
  const auto stub = v1::Inference::NewStub(
      grpc::CreateChannel(options.address, grpc::InsecureChannelCredentials()));
  std::mt19937 random(1);
  // Adapters come to the device and workspaces are touched.
  RETURN_IF_ERROR(RunRound(options, {options.base}, *stub, random).status());
  RETURN_IF_ERROR(RunRound(options, options.adapters, *stub, random).status());
  std::vector<Round> base_rounds, mixed_rounds;
  for (int round = 0; round < options.rounds; ++round) {
    ASSIGN_OR_RETURN(const Round b, RunRound(options, {options.base}, *stub, random));
    base_rounds.push_back(b);
    ASSIGN_OR_RETURN(const Round m, RunRound(options, options.adapters, *stub, random));
    mixed_rounds.push_back(m);
  }
  const Medians base = MedianOf(base_rounds), mixed = MedianOf(mixed_rounds);
  const std::string name =
      absl::StrCat("streams=", options.streams, " prompt=", options.prompt_tokens);
  const std::string with = absl::StrCat(name, " adapters=", options.adapters.size());
  const double step = options.streams * 1e3;
  return std::vector<BenchResult>{
      {"", name + " base, decode", base.tokens_per_second, 0, "higher", "tokens/s"},
      {"", with + ", decode", mixed.tokens_per_second, 0, "higher", "tokens/s"},
      {"", name + " base, time a token", step / base.tokens_per_second, 0, "lower", "ms"},
      {"", with + ", time a token", step / mixed.tokens_per_second, 0, "lower", "ms"},
      {"cpu lora overhead", with + " over base", base.tokens_per_second / mixed.tokens_per_second,
       1.2, "lower", "ratio"},
      {"", name + " base, last first token", base.first_tokens * 1e3, 0, "lower", "ms"},
      {"", with + ", last first token", mixed.first_tokens * 1e3, 0, "lower", "ms"},
  };
}

}  // namespace rootstock
