// One group's stream on the coordinator's side.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "coordinator/cluster/group_link.h"
#include "rootstock/v1/group.pb.h"

namespace grpc {
class CallbackServerContext;
}  // namespace grpc

namespace rootstock {

class GroupStream;

// Which stream is a group's current one. Thread-safe.
class StreamTable {
 public:
  explicit StreamTable(std::function<void(int)> on_attached)
      : on_attached_(std::move(on_attached)) {}
  // Makes `stream` the current one of `group` and returns the one before.
  std::shared_ptr<GroupStream> Replace(const std::string& group,
                                       std::shared_ptr<GroupStream> stream);
  void Remove(const std::string& group, const GroupStream* stream);
  void CountAttached(int change);

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<GroupStream>> current_;
  int attached_ = 0;
  const std::function<void(int)> on_attached_;
};

// Hello → AttachOrder → AttachReport → commands and completions, until either side ends it. Keeps
// itself alive until gRPC is done with it; as a GroupLink it may live longer. Thread-safe.
class GroupStream : public grpc::ServerBidiReactor<v1::GroupMessage, v1::CoordinatorMessage>,
                    public GroupLink,
                    public std::enable_shared_from_this<GroupStream> {
 public:
  GroupStream(grpc::CallbackServerContext* context, GroupDirectory* directory, StreamTable* table);
  void Begin();  // once, when a shared_ptr owns it

  void Send(Command command) override;
  void SendLeave() override;
  void Close(const absl::Status& why) override;
  // Another stream took the group over.
  void Supersede();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  enum class State { kHello, kReport, kAttached, kEnded };

  absl::Status Handle();
  absl::Status HandleHello(const v1::Hello& hello);
  absl::Status HandleReport(const v1::AttachReport& report);
  absl::Status HandleCompletion(const v1::Completion& completion);
  void RefuseAndEnd(const absl::Status& why);
  // Tells the listener, once.
  void Lose(const absl::Status& why);
  void Write(v1::CoordinatorMessage message);
  // No writes after those queued; then the call's status.
  void End(const absl::Status& status);
  void WriteNextLocked();

  grpc::CallbackServerContext* const context_;
  GroupDirectory* const directory_;
  StreamTable* const table_;
  std::shared_ptr<GroupStream> self_;
  v1::GroupMessage incoming_;

  std::mutex listener_mutex_;  // orders the calls of the listener; taken before write_mutex_
  State state_ = State::kHello;
  GroupInfo info_;
  Epoch epoch_;  // ordered
  std::shared_ptr<GroupListener> listener_;

  std::mutex write_mutex_;
  std::deque<v1::CoordinatorMessage> outgoing_;  // the first one is being written
  bool writing_ = false;
  bool ending_ = false;
  bool finished_ = false;
  grpc::Status end_status_;
};

}  // namespace rootstock
