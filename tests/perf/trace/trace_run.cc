#include "tests/perf/trace/trace_run.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

// What all streams of a saturated run have done together.
struct TraceRun::Progress {
  const Clock::time_point start = Clock::now();
  std::atomic<size_t> next = 0;  // request to send
  std::atomic<size_t> ended = 0;
  std::atomic<int64_t> tokens = 0;
  std::mutex mutex;
  struct Mark {
    double seconds = 0;
    int64_t tokens = 0;
  };
  Mark busy, last_sent;  // guarded by mutex

  Mark Now() const { return {SecondsSince(start), tokens}; }
};

TraceRun::TraceRun(const TraceBenchOptions& options)
    : options_(options),
      stub_(v1::Inference::NewStub(
          grpc::CreateChannel(options.address, grpc::InsecureChannelCredentials()))) {}

absl::StatusOr<double> TraceRun::Saturate(const std::vector<TraceRequest>& trace) {
  Progress progress;
  const auto streams = static_cast<size_t>(options_.streams);
  const auto work = [&] {
    for (size_t i = progress.next++; i < trace.size() && status().ok(); i = progress.next++) {
      if (i + 1 == trace.size()) {
        const std::lock_guard lock(progress.mutex);
        progress.last_sent = progress.Now();
      }
      Ask(trace[i], &progress);
      if (++progress.ended == streams / 2) {
        const std::lock_guard lock(progress.mutex);
        progress.busy = progress.Now();
      }
    }
  };
  std::vector<std::thread> threads;
  for (size_t t = 0; t < streams; ++t) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  RETURN_IF_ERROR(status());
  const double seconds = progress.last_sent.seconds - progress.busy.seconds;
  return static_cast<double>(progress.last_sent.tokens - progress.busy.tokens) / seconds;
}

absl::StatusOr<std::vector<double>> TraceRun::Replay(const std::vector<TraceRequest>& trace) {
  std::vector<double> firsts(trace.size());
  std::vector<std::thread> threads;
  const auto start = Clock::now();
  for (size_t i = 0; i < trace.size(); ++i) {
    std::this_thread::sleep_until(start + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double>(trace[i].at)));
    threads.emplace_back([this, &trace, &firsts, i] { firsts[i] = Ask(trace[i], nullptr); });
  }
  for (std::thread& thread : threads) thread.join();
  RETURN_IF_ERROR(status());
  return firsts;
}

absl::Status TraceRun::Touch(int adapters) {
  std::atomic<int> next = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < options_.streams; ++t) {
    threads.emplace_back([&] {
      for (int i = next++; i < adapters && status().ok(); i = next++) Ask({0, i, 4, 2}, nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return status();
}

// Seconds to the first token.
double TraceRun::Ask(const TraceRequest& asked, Progress* progress) {
  v1::GenerateRequest request;
  request.set_model(options_.names[static_cast<size_t>(asked.adapter)]);
  std::minstd_rand random(static_cast<uint32_t>(asked.prompt_tokens * 7919 + asked.adapter));
  std::uniform_int_distribution<int> id(options_.first_id, options_.last_id);
  for (int i = 0; i < asked.prompt_tokens; ++i) request.mutable_token_ids()->add_ids(id(random));
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
    const int tokens = response.delta().token_ids_size();
    if (first == 0 && tokens > 0) first = SecondsSince(start);
    if (progress != nullptr) progress->tokens += tokens;
  }
  const grpc::Status done = reader->Finish();
  if (!done.ok()) Fail(absl::UnavailableError(absl::StrCat("generate: ", done.error_message())));
  return first;
}

absl::Status TraceRun::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void TraceRun::Fail(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  if (status_.ok()) status_ = status;
}

}  // namespace rootstock
