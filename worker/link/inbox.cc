#include "worker/link/inbox.h"

#include <utility>

namespace rootstock {

bool Inbox::Push(LinkEvent event) {
  std::lock_guard lock(mutex_);
  // Losses, drains and collects are few and must come through.
  if (event.kind == LinkEvent::Kind::kMessage) {
    if (events_.size() >= kMaxEvents) return false;
    if (event.message.has_command()) ++commands_received_;
  }
  if (event.kind == LinkEvent::Kind::kLost) {
    // What was queued is dropped with its stream, but for the reason that it ended.
    std::erase_if(events_, [&event](const LinkEvent& e) {
      return e.kind == LinkEvent::Kind::kMessage && e.stream == event.stream &&
             !e.message.has_refuse() && !e.message.has_leave();
    });
  }
  events_.push_back(std::move(event));
  changed_.notify_one();
  return true;
}

std::optional<LinkEvent> Inbox::Pop(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return !events_.empty(); };
  if (deadline == Clock::time_point::max()) {
    changed_.wait(lock, ready);
  } else if (!changed_.wait_until(lock, deadline, ready)) {
    return std::nullopt;
  }
  LinkEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

uint64_t Inbox::commands_received() const {
  std::lock_guard lock(mutex_);
  return commands_received_;
}

}  // namespace rootstock
