// tp_rank 0: between the coordinator's stream and the bus.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "worker/link/coordinator_client.h"
#include "worker/link/group_bus.h"
#include "worker/link/inbox.h"
#include "worker/link/member.h"

namespace rootstock {

// Owns the stream. A loss drops what was queued; weights and adapters stay, the next attach brings
// a higher epoch. *Step thread only.*
class Leader {
 public:
  using Clock = Inbox::Clock;
  // Opens stream `number`.
  using Connect = std::function<std::shared_ptr<CoordinatorStream>(uint64_t number)>;

  // Borrowed. `coordinator` is for messages.
  Leader(GroupBus& bus, Member& member, Inbox& inbox, Connect connect, std::string coordinator);

  // The exit code; an error when the group is broken.
  absl::StatusOr<int> Run();

 private:
  enum class State { kIdle, kConnecting, kAttached, kDraining };

  // Sets ended_ to end.
  void Handle(LinkEvent event);
  void OnMessage(const v1::CoordinatorMessage& message);
  void OnAttach(const v1::AttachOrder& order);
  void OnCommand(const v1::Command& command);
  void OnLost(const absl::Status& why);
  void OnDrain();
  void OpenNext();
  // Sends on the bus and runs it here too.
  Answers RunEverywhere(BusMessage message);
  void Complete(const Answers& answers);
  Clock::time_point Deadline() const;
  void Exit(int code, const std::string& reason);

  GroupBus& bus_;
  Member& member_;
  Inbox& inbox_;
  const Connect connect_;
  const std::string coordinator_;
  State state_ = State::kIdle;
  std::shared_ptr<CoordinatorStream> stream_;
  uint64_t stream_number_ = 0;
  Epoch epoch_;  // highest that was obeyed
  Clock::duration backoff_;
  Clock::time_point connect_at_;
  Clock::time_point told_at_;  // when the log said that the coordinator is absent
  // When to ask the other ranks, which have no way to tell, whether a load has ended there too.
  std::optional<Clock::time_point> collect_at_;
  Clock::duration collect_pause_;
  std::optional<absl::StatusOr<int>> ended_;
};

}  // namespace rootstock
