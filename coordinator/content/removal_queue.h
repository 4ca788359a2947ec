// Bytes that are to go, without anybody waiting for it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "absl/status/status.h"
#include "common/base/digest.h"

namespace rootstock {

// Removes contents one after the other on a thread of its own. *Thread-safe.*
class RemovalQueue {
 public:
  // After an error the content stays in the queue.
  using Remove = std::function<absl::Status(const Digest&)>;

  // What failed is tried again `retry` later, all of it.
  RemovalQueue(Remove remove, std::chrono::milliseconds retry);
  ~RemovalQueue();  // waits for the removal that runs; what is to come is not removed

  // Never waits.
  void Add(const Digest& digest);
  // It is not to be removed any more; whether it was. Waits while it is being removed.
  bool Forget(const Digest& digest);
  // Waits until all that was added has been tried.
  void Drain();

 private:
  void Run();

  const Remove remove_;
  const std::chrono::milliseconds retry_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<Digest> waiting_, failed_;
  std::optional<Digest> running_;
  bool forgotten_ = false;  // running_, meanwhile
  std::chrono::steady_clock::time_point retry_at_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace rootstock
