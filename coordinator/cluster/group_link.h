// The group stream without its transport: PROTOCOL §2.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"

namespace rootstock {

// A group's end of one stream, for one epoch. *Thread-safe.*
class GroupLink {
 public:
  virtual ~GroupLink() = default;
  // Ordered; never blocks. After a loss commands are dropped: OnLost tells.
  virtual void Send(Command command) = 0;
  // Drained: every rank exits with 0, then the stream ends.
  virtual void SendLeave() = 0;
  // Ends the stream, also one whose group reads no more; OnLost tells. Not from OnLost.
  virtual void Close(const absl::Status& why) = 0;
};

// Told what a group does. Calls for one group come in order, on the transport's threads; they
// must not block. Nothing follows OnLost.
class GroupListener {
 public:
  virtual ~GroupListener() = default;
  virtual void OnCompletion(Completion completion) = 0;
  virtual void OnLeaving() = 0;  // the group asks to be drained
  virtual void OnLost(const absl::Status& why) = 0;
};

// Decides on attaches. *Thread-safe.*
class GroupDirectory {
 public:
  struct Order {
    Epoch epoch;
    GroupLimits limits;
  };
  virtual ~GroupDirectory() = default;
  // A stream's first message. An error refuses the group by name; it exits with the message.
  virtual absl::StatusOr<Order> OnHello(const GroupInfo& info) = 0;
  // A stream ended between its order and its attach.
  virtual void OnFormingLost(const std::string& group, const Epoch& epoch) = 0;
  // The report that answers the order. Takes the link; an error refuses.
  virtual absl::StatusOr<std::shared_ptr<GroupListener>> OnAttached(
      const GroupInfo& info, const AttachReport& report, std::shared_ptr<GroupLink> link) = 0;
};

}  // namespace rootstock
