// For callers without a link: waits for what a rank was left to do beside its steps.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "worker/runtime/worker_runtime.h"

namespace rootstock {

// The outcome of the Prefetch or Load `id`, which is yet to be settled.
inline absl::Status AwaitOutcome(WorkerRuntime& runtime, CommandId id) {
  struct Bell {
    std::mutex mutex;
    std::condition_variable changed;
    bool told = false;
  };
  const auto bell = std::make_shared<Bell>();  // may ring once more when all is done
  runtime.loader().NotifyWhenDone([bell] {
    std::lock_guard lock(bell->mutex);
    bell->told = true;
    bell->changed.notify_all();
  });
  std::optional<absl::Status> outcome = runtime.OutcomeOf(id);
  for (; !outcome.has_value(); outcome = runtime.OutcomeOf(id)) {
    std::unique_lock lock(bell->mutex);
    bell->changed.wait(lock, [&] { return bell->told; });
    bell->told = false;
  }
  runtime.loader().NotifyWhenDone(nullptr);
  return *outcome;
}

// Completes the Prefetch or Load `id` that was started last. One rank alone.
inline absl::Status FinishLoad(WorkerRuntime& runtime, CommandId id) {
  const absl::Status outcome = AwaitOutcome(runtime, id);
  const absl::Status settled = runtime.Settle(id, outcome);
  return settled.ok() ? outcome : settled;
}

}  // namespace rootstock
