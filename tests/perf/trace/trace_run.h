// Requests of a trace against a coordinator, as many as go or each at its time.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "rootstock/v1/inference.grpc.pb.h"
#include "tests/perf/trace/trace.h"
#include "tests/perf/trace/trace_bench.h"

namespace rootstock {

// A thread a request under way. After an error every call returns it. *Thread-compatible.*
class TraceRun {
 public:
  explicit TraceRun(const TraceBenchOptions& options);

  // All requests, options.streams at a time. Output tokens a second while all streams are busy:
  // from when half as many requests have ended as there are streams until the last one is sent.
  absl::StatusOr<double> Saturate(const std::vector<TraceRequest>& trace);
  // Each when the trace says. Seconds to the first token of each.
  absl::StatusOr<std::vector<double>> Replay(const std::vector<TraceRequest>& trace);
  // A short request for each of the first so many adapters.
  absl::Status Touch(int adapters);

 private:
  struct Progress;

  double Ask(const TraceRequest& asked, Progress* progress);
  absl::Status status() const;
  void Fail(const absl::Status& status);

  const TraceBenchOptions& options_;
  const std::unique_ptr<v1::Inference::Stub> stub_;
  mutable std::mutex mutex_;
  absl::Status status_;
};

}  // namespace rootstock
