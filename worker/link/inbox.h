// What reaches the leader's step thread from other threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "rootstock/v1/group.pb.h"

namespace rootstock {

struct LinkEvent {
  enum class Kind {
    kMessage,   // of the coordinator
    kLost,      // the stream ended, `why`
    kCollect,   // a prefetch of this node ended
    kDrain,     // a signal asks the group to leave
    kStepDone,  // a step that was left running has run
  };
  Kind kind = Kind::kCollect;
  uint64_t stream = 0;  // of kMessage and kLost
  v1::CoordinatorMessage message;
  absl::Status why;
};

// Ordered, bounded. *Thread-safe.*
class Inbox {
 public:
  using Clock = std::chrono::steady_clock;

  // False when full: the coordinator does not keep to its plans in flight.
  bool Push(LinkEvent event);
  // Waits, at most until `deadline`; nothing when that passed.
  std::optional<LinkEvent> Pop(Clock::time_point deadline);
  // Commands that arrived since start, executed or not.
  uint64_t commands_received() const;

 private:
  static constexpr size_t kMaxEvents = 4096;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<LinkEvent> events_;
  uint64_t commands_received_ = 0;
};

}  // namespace rootstock
