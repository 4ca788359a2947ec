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
#include "tests/perf/stream_request.h"

namespace rootstock {
namespace {

using Clock = std::chrono::steady_clock;

struct Streams {
  Clock::time_point start;
  std::vector<Arrivals> arrivals;
};

// All streams at once; stream i asks models[i % size].
absl::StatusOr<Streams> RunStreams(const StreamBenchOptions& options,
                                   const std::vector<std::string>& models,
                                   v1::Inference::Stub& stub, std::mt19937& random) {
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < options.streams; ++i) {
    requests.push_back(MakeStreamRequest(options, models[i % models.size()], random));
  }
  std::vector<absl::StatusOr<Arrivals>> streams(requests.size());
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
  Streams done{.start = start};
  for (absl::StatusOr<Arrivals>& stream : streams) {
    RETURN_IF_ERROR(stream.status());
    done.arrivals.push_back(*std::move(stream));
  }
  return done;
}

absl::StatusOr<StreamRound> RunRound(const StreamBenchOptions& options,
                                     const std::vector<std::string>& models,
                                     v1::Inference::Stub& stub, std::mt19937& random) {
  ASSIGN_OR_RETURN(const Streams streams, RunStreams(options, models, stub, random));
  return RoundOf(streams.arrivals, streams.start);
}

struct Rounds {
  std::vector<StreamRound> streams;
  std::vector<double> prompt_seconds;  // of all prompts, with one token each
};

// Prompts alone first: nothing decodes beside them.
absl::Status AddRound(const StreamBenchOptions& options, const std::vector<std::string>& models,
                      v1::Inference::Stub& stub, std::mt19937& random, Rounds& rounds) {
  StreamBenchOptions prompts = options;
  prompts.max_tokens = 1;
  ASSIGN_OR_RETURN(const Streams first, RunStreams(prompts, models, stub, random));
  Clock::time_point last = first.start;
  for (const Arrivals& stream : first.arrivals) last = std::max(last, stream.back());
  rounds.prompt_seconds.push_back(std::chrono::duration<double>(last - first.start).count());
  ASSIGN_OR_RETURN(const StreamRound round, RunRound(options, models, stub, random));
  rounds.streams.push_back(round);
  return absl::OkStatus();
}

struct Medians {
  double tokens_per_second = 0;
  double first_tokens = 0;
  double output_per_second = 0;
  double prompt_seconds = 0;
};

Medians MedianOf(const Rounds& rounds) {
  std::vector<double> rates, firsts, outputs;
  for (const StreamRound& round : rounds.streams) {
    rates.push_back(round.tokens_per_second);
    firsts.push_back(round.first_tokens);
    outputs.push_back(round.output_per_second);
  }
  return {Quantile(rates, 0.5), Quantile(firsts, 0.5), Quantile(outputs, 0.5),
          Quantile(rounds.prompt_seconds, 0.5)};
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
  // Adapters come to the device and workspaces are touched; streams need not overlap meanwhile.
  RETURN_IF_ERROR(RunStreams(options, {options.base}, *stub, random).status());
  RETURN_IF_ERROR(RunStreams(options, options.adapters, *stub, random).status());
  Rounds base_rounds, mixed_rounds;
  for (int round = 0; round < options.rounds; ++round) {
    RETURN_IF_ERROR(AddRound(options, {options.base}, *stub, random, base_rounds));
    RETURN_IF_ERROR(AddRound(options, options.adapters, *stub, random, mixed_rounds));
  }
  const Medians base = MedianOf(base_rounds), mixed = MedianOf(mixed_rounds);
  const std::string name =
      absl::StrCat("streams=", options.streams, " prompt=", options.prompt_tokens);
  const std::string with = absl::StrCat(name, " adapters=", options.adapters.size());
  const double step = options.streams * 1e3;
  const double prompts = 1.0 * options.streams * options.prompt_tokens;
  return std::vector<BenchResult>{
      {"", name + " base, decode", base.tokens_per_second, 0, "higher", "tokens/s"},
      {"", with + ", decode", mixed.tokens_per_second, 0, "higher", "tokens/s"},
      {"", name + " base, time a token", step / base.tokens_per_second, 0, "lower", "ms"},
      {"", with + ", time a token", step / mixed.tokens_per_second, 0, "lower", "ms"},
      {"cpu lora overhead", with + " over base", base.tokens_per_second / mixed.tokens_per_second,
       1.2, "lower", "ratio"},
      {"", name + " base, last first token", base.first_tokens * 1e3, 0, "lower", "ms"},
      {"", with + ", last first token", mixed.first_tokens * 1e3, 0, "lower", "ms"},
      {"", name + " base, output", base.output_per_second, 0, "higher", "tokens/s"},
      {"", with + ", output", mixed.output_per_second, 0, "higher", "tokens/s"},
      {"", name + " base, prefill", prompts / base.prompt_seconds, 0, "higher", "tokens/s"},
      {"", with + ", prefill", prompts / mixed.prompt_seconds, 0, "higher", "tokens/s"},
  };
}

}  // namespace rootstock
