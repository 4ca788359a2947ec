#include "tests/perf/trace_bench.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "rootstock/v1/inference.grpc.pb.h"
#include "tests/perf/trace.h"

namespace rootstock {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One side of a comparison: its adapters are the first so many.
struct Side {
  int adapters = 0;
  std::vector<double> rates;  // requests a second, a round
};

class TraceRun {
 public:
  explicit TraceRun(const TraceBenchOptions& options)
      : options_(options),
        stub_(v1::Inference::NewStub(
            grpc::CreateChannel(options.address, grpc::InsecureChannelCredentials()))) {}

  // All requests, `streams` at a time. Requests a second.
  absl::StatusOr<double> Saturate(const std::vector<TraceRequest>& trace) {
    std::atomic<size_t> next = 0;
    const auto start = Clock::now();
    std::vector<std::thread> threads;
    for (int t = 0; t < options_.streams; ++t) {
      threads.emplace_back([&] {
        for (size_t i = next++; i < trace.size() && status().ok(); i = next++) Ask(trace[i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    const double seconds = SecondsSince(start);
    RETURN_IF_ERROR(status());
    return static_cast<double>(trace.size()) / seconds;
  }

  // Each when the trace says. Seconds to the first token of each.
  absl::StatusOr<std::vector<double>> Replay(const std::vector<TraceRequest>& trace) {
    std::vector<double> firsts(trace.size());
    std::vector<std::thread> threads;
    const auto start = Clock::now();
    for (size_t i = 0; i < trace.size(); ++i) {
      std::this_thread::sleep_until(start + std::chrono::duration_cast<Clock::duration>(
                                                std::chrono::duration<double>(trace[i].at)));
      threads.emplace_back([this, &trace, &firsts, i] { firsts[i] = Ask(trace[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    RETURN_IF_ERROR(status());
    return firsts;
  }

  // The first so many come to the device.
  absl::Status Warm(int adapters) {
    std::vector<TraceRequest> trace;
    for (int i = 0; i < adapters; ++i) trace.push_back({0, i, 4, 2});
    return Saturate(trace).status();
  }

 private:
  // Seconds to the first token.
  double Ask(const TraceRequest& asked) {
    v1::GenerateRequest request;
    request.set_model(options_.names[static_cast<size_t>(asked.adapter)]);
    std::minstd_rand random(static_cast<uint32_t>(asked.prompt_tokens * 7919 + asked.adapter));
    std::uniform_int_distribution<int> id(options_.first_id, options_.last_id);
    for (int i = 0; i < asked.prompt_tokens; ++i) {
      request.mutable_token_ids()->add_ids(id(random));
    }
    request.mutable_sampling()->set_temperature(0);
    request.set_max_tokens(asked.output_tokens);
    request.set_ignore_eos(true);
    request.set_echo_token_ids(true);
    grpc::ClientContext context;
    const auto start = Clock::now();
    double first = 0;
    const auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
      if (first == 0 && response.delta().token_ids_size() > 0) first = SecondsSince(start);
    }
    const grpc::Status done = reader->Finish();
    if (!done.ok()) Fail(absl::UnavailableError(absl::StrCat("generate: ", done.error_message())));
    return first;
  }

  absl::Status status() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  void Fail(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
  }

  const TraceBenchOptions& options_;
  const std::unique_ptr<v1::Inference::Stub> stub_;
  mutable std::mutex mutex_;
  absl::Status status_;
};

TraceShape ShapeOf(const TraceBenchOptions& options, int adapters, double alpha, double cv,
                   double rate) {
  return {.adapters = adapters,
          .alpha = alpha,
          .cv = cv,
          .rate = rate,
          .min_length = options.min_length,
          .max_length = options.max_length};
}

// 0: not a positive number.
double Positive(const std::string& text) {
  double value = 0;
  return absl::SimpleAtod(text, &value) && value > 0 ? value : 0;
}

absl::Status Check(const TraceBenchOptions& options) {
  const auto positive = [](const std::vector<std::string>& all) {
    return !all.empty() &&
           std::all_of(all.begin(), all.end(), [](const auto& text) { return Positive(text) > 0; });
  };
  if (!positive(options.alphas) || !positive(options.cvs)) {
    return InvalidField(Reason::kConfigInvalid, "alpha, cv", "", "want positive numbers");
  }
  if (static_cast<int>(options.names.size()) <= options.resident) {
    return InvalidField(Reason::kConfigInvalid, "name", absl::StrCat(options.names.size()),
                        absl::StrCat("wants more adapters than the resident ", options.resident));
  }
  if (options.max_length <= options.min_length || options.last_id < options.first_id) {
    return InvalidField(Reason::kConfigInvalid, "max-length, last-id", "",
                        "must be above min-length, first-id");
  }
  return absl::OkStatus();
}

class Comparison {
 public:
  explicit Comparison(const TraceBenchOptions& options) : options_(options), run_(options) {}

  absl::Status AtSaturation(const std::string& alpha) {
    Side many{static_cast<int>(options_.names.size()), {}}, few{options_.resident, {}};
    for (int round = 0; round < options_.rounds; ++round) {
      for (Side* side : {&few, &many}) {
        RETURN_IF_ERROR(run_.Warm(options_.resident));
        const auto shape = ShapeOf(options_, side->adapters, Positive(alpha), 1, 1);
        ASSIGN_OR_RETURN(const double rate, run_.Saturate(MakeTrace(shape, options_.requests)));
        side->rates.push_back(rate);
      }
    }
    saturation_ = Quantile(many.rates, 0.5);
    const double resident = Quantile(few.rates, 0.5);
    const std::string name = absl::StrCat("trace alpha=", alpha, " adapters=", many.adapters);
    results_.push_back({"", absl::StrCat(name, ", saturation"), saturation_, 0, "higher", "req/s"});
    results_.push_back(
        {"",
         absl::StrCat("trace alpha=", alpha, " adapters=", few.adapters, " resident, saturation"),
         resident, 0, "higher", "req/s"});
    results_.push_back({"9", absl::StrCat(name, " over ", few.adapters, " resident, saturation"),
                        saturation_ / resident, 0.95, "higher", "ratio"});
    return absl::OkStatus();
  }

  // The few at the same rate: what they lack is only the coming and going of adapters.
  absl::Status BelowSaturation(const std::string& alpha, const std::string& cv) {
    double p99[2] = {0, 0};
    const int adapters[2] = {options_.resident, static_cast<int>(options_.names.size())};
    const std::string name = absl::StrCat("trace alpha=", alpha, " cv=", cv);
    for (const int side : {0, 1}) {
      RETURN_IF_ERROR(run_.Warm(options_.resident));
      const auto shape =
          ShapeOf(options_, adapters[side], Positive(alpha), Positive(cv), 0.9 * saturation_);
      ASSIGN_OR_RETURN(const auto firsts, run_.Replay(MakeTrace(shape, options_.requests)));
      p99[side] = Quantile(firsts, 0.99) * 1e3;
      results_.push_back({"", absl::StrCat(name, " adapters=", adapters[side], ", p99 first token"),
                          p99[side], 0, "lower", "ms"});
    }
    results_.push_back({"9",
                        absl::StrCat(name, " adapters=", adapters[1], " over ", adapters[0],
                                     " resident, p99 first token at 90 %"),
                        p99[1] / p99[0], 1.5, "lower", "ratio"});
    return absl::OkStatus();
  }

  std::vector<BenchResult> Take() { return std::move(results_); }

 private:
  const TraceBenchOptions& options_;
  TraceRun run_;
  double saturation_ = 0;  // of the many, last alpha
  std::vector<BenchResult> results_;
};

}  // namespace

absl::StatusOr<std::vector<BenchResult>> RunTraceBench(const TraceBenchOptions& options) {
  RETURN_IF_ERROR(Check(options));
  Comparison comparison(options);
  for (const std::string& alpha : options.alphas) {
    RETURN_IF_ERROR(comparison.AtSaturation(alpha));
    for (const std::string& cv : options.cvs) {
      RETURN_IF_ERROR(comparison.BelowSaturation(alpha, cv));
    }
  }
  return comparison.Take();
}

}  // namespace rootstock
