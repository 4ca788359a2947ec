#include "worker/parallel/watchdog.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/device/cuda_device.h"

namespace rootstock {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks(20);

}  // namespace

absl::StatusOr<std::unique_ptr<Watchdog>> Watchdog::Start(Options options) {
  std::unique_ptr<Watchdog> out(new Watchdog(std::move(options)));
  out->thread_ = std::thread([raw = out.get()] { raw->Run(); });
  return out;
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
  for (const Pending& pending : pending_) cudaEventDestroy(pending.event);
  for (const cudaEvent_t event : free_) cudaEventDestroy(event);
}

// A mark that can't be set goes unwatched: the device is broken, and its next call says so.
void Watchdog::Mark(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  cudaEvent_t event = nullptr;
  if (!free_.empty()) {
    event = free_.back();
    free_.pop_back();
  } else if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
    return;
  }
  if (cudaEventRecord(event, stream) == cudaSuccess) {
    pending_.push_back({event, Clock::now()});
  } else {
    free_.push_back(event);
  }
}

void Watchdog::Run() {
  cudaSetDevice(options_.device);
  std::unique_lock lock(mutex_);
  reached_ = Clock::now();
  while (!changed_.wait_for(lock, kBetweenLooks, [this] { return ending_; })) {
    const std::optional<GroupLoss> loss = Look(Clock::now());
    if (!loss.has_value()) continue;
    lock.unlock();
    options_.on_loss(*loss);
    return;
  }
}

std::optional<GroupLoss> Watchdog::Look(Clock::time_point now) {
  if (std::optional<GroupLoss> loss = options_.ask(); loss.has_value()) return loss;
  while (!pending_.empty()) {
    // Anything but "not ready" is an end; errors are told by the device's own calls.
    if (cudaEventQuery(pending_.front().event) == cudaErrorNotReady) break;
    free_.push_back(pending_.front().event);
    pending_.pop_front();
    reached_ = now;
  }
  if (pending_.empty()) return std::nullopt;
  const auto waited = now - std::max(pending_.front().set, reached_);
  if (waited <= options_.limit) return std::nullopt;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(waited).count();
  return GroupLoss{GroupLoss::Cause::kLateStep,
                   absl::StrCat("a step has not ended for ", ms, " ms")};
}

}  // namespace rootstock
