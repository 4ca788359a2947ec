// Notices that a rank of the group is lost while this one waits for it on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/parallel/group_loss.h"

namespace rootstock {

// A thread that looks at marks on a stream: each is to be reached within `limit` of being set, or
// of the mark before it. *Thread-safe.*
class Watchdog {
 public:
  struct Options {
    int device = 0;
    std::chrono::milliseconds limit{3000};
    // Asked at each look: whether the group is lost.
    std::function<std::optional<GroupLoss>()> ask;
    std::function<void(const GroupLoss& loss)> on_loss;  // called once, on the thread
  };
  static absl::StatusOr<std::unique_ptr<Watchdog>> Start(Options options);
  ~Watchdog();

  // A mark behind all that `stream` holds.
  void Mark(cudaStream_t stream);

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    cudaEvent_t event;
    Clock::time_point set;
  };

  explicit Watchdog(Options options) : options_(std::move(options)) {}
  void Run();
  std::optional<GroupLoss> Look(Clock::time_point now);

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::deque<Pending> pending_;
  std::vector<cudaEvent_t> free_;
  Clock::time_point reached_;  // when the latest mark was seen to be reached
  std::thread thread_;
};

}  // namespace rootstock
