#include "coordinator/cluster/group_stream.h"

#include <grpcpp/server_context.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/wire/plan_wire.h"

namespace rootstock {
namespace {

// gRPC's default limit of a message, which is not raised.
constexpr size_t kMaxMessageBytes = 4 << 20;

absl::Status Unexpected(const std::string& what) {
  return InvalidField(Reason::kInvalidArgument, "stream", what, "unexpected message");
}

std::string Name(const GroupInfo& info) {
  return info.name.empty() ? "a group" : absl::StrCat("group ", info.name);
}

}  // namespace

std::shared_ptr<GroupStream> StreamTable::Replace(const std::string& group,
                                                  std::shared_ptr<GroupStream> stream) {
  std::lock_guard lock(mutex_);
  return std::exchange(current_[group], std::move(stream));
}

void StreamTable::Remove(const std::string& group, const GroupStream* stream) {
  std::lock_guard lock(mutex_);
  const auto it = current_.find(group);
  if (it != current_.end() && it->second.get() == stream) current_.erase(it);
}

void StreamTable::CountAttached(int change) {
  std::lock_guard lock(mutex_);
  attached_ += change;
  on_attached_(attached_);
}

GroupStream::GroupStream(grpc::CallbackServerContext* context, GroupDirectory* directory,
                         StreamTable* table)
    : context_(context), directory_(directory), table_(table) {}

void GroupStream::Begin() {
  self_ = shared_from_this();
  StartRead(&incoming_);
}

void GroupStream::OnReadDone(bool ok) {
  if (!ok) {
    Lose(absl::UnavailableError("the group's stream ended"));
    End(absl::OkStatus());
    return;
  }
  const absl::Status status = Handle();
  if (!status.ok()) {
    RefuseAndEnd(status);
    return;
  }
  StartRead(&incoming_);
}

absl::Status GroupStream::Handle() {
  std::lock_guard lock(listener_mutex_);
  switch (incoming_.message_case()) {
    case v1::GroupMessage::kHello:
      return HandleHello(incoming_.hello());
    case v1::GroupMessage::kReport:
      return HandleReport(incoming_.report());
    case v1::GroupMessage::kCompletion:
      return HandleCompletion(incoming_.completion());
    case v1::GroupMessage::kLeaving:
      if (state_ == State::kEnded) return absl::OkStatus();
      if (state_ != State::kAttached) return Unexpected("leaving");
      listener_->OnLeaving();
      return absl::OkStatus();
    default:
      return Unexpected("empty");
  }
}

absl::Status GroupStream::HandleHello(const v1::Hello& hello) {
  if (state_ != State::kHello) return Unexpected("hello");
  ASSIGN_OR_RETURN(info_, FromProto(hello));
  ASSIGN_OR_RETURN(const GroupDirectory::Order order, directory_->OnHello(info_));
  if (const auto older = table_->Replace(info_.name, shared_from_this())) older->Supersede();
  state_ = State::kReport;
  epoch_ = order.epoch;
  v1::CoordinatorMessage message;
  ToProto(AttachOrder{order.epoch, order.limits}, message.mutable_attach());
  Write(std::move(message));
  return absl::OkStatus();
}

absl::Status GroupStream::HandleReport(const v1::AttachReport& wire) {
  if (state_ == State::kEnded) return absl::OkStatus();
  if (state_ != State::kReport) return Unexpected("report");
  ASSIGN_OR_RETURN(const AttachReport report, FromProto(wire));
  if (report.epoch != epoch_) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch, "report.epoch",
                     absl::StrCat(report.epoch.incarnation, ".", report.epoch.attach),
                     "not the epoch that was ordered");
  }
  ASSIGN_OR_RETURN(listener_, directory_->OnAttached(info_, report, shared_from_this()));
  state_ = State::kAttached;
  table_->CountAttached(1);
  return absl::OkStatus();
}

absl::Status GroupStream::HandleCompletion(const v1::Completion& wire) {
  if (state_ == State::kEnded) return absl::OkStatus();
  if (state_ != State::kAttached) return Unexpected("completion");
  ASSIGN_OR_RETURN(Completion completion, FromProto(wire));
  listener_->OnCompletion(std::move(completion));
  return absl::OkStatus();
}

void GroupStream::RefuseAndEnd(const absl::Status& why) {
  LogWarning("refusing ", Name(info_), ": ", std::string(why.message()));
  Lose(why);
  v1::CoordinatorMessage message;
  const auto detail = GetErrorDetail(why);
  message.mutable_refuse()->set_reason(ReasonName(detail ? detail->reason : Reason::kInternal));
  message.mutable_refuse()->set_message(std::string(why.message()));
  Write(std::move(message));
  End(why);
}

void GroupStream::Supersede() {
  Close(absl::AbortedError("a newer stream of this group attached"));
}

void GroupStream::Close(const absl::Status& why) {
  Lose(why);
  End(why);
  std::lock_guard lock(write_mutex_);
  if (writing_) context_->TryCancel();  // it may never read
}

void GroupStream::Lose(const absl::Status& why) {
  std::lock_guard lock(listener_mutex_);
  if (state_ == State::kEnded) return;
  const State was = std::exchange(state_, State::kEnded);
  table_->Remove(info_.name, this);
  if (was == State::kReport) {
    if (absl::IsUnavailable(why)) {  // what is refused is told already
      LogWarning(Name(info_), " left without obeying epoch ", epoch_.incarnation, ".",
                 epoch_.attach, ": ", std::string(why.message()),
                 "; if it had obeyed one of another --data, its log says so, and it comes again "
                 "when it is started again");
    }
    directory_->OnFormingLost(info_.name, epoch_);
  }
  if (was != State::kAttached) return;
  table_->CountAttached(-1);
  listener_->OnLost(why);
  listener_.reset();
}

void GroupStream::Send(Command command) {
  v1::CoordinatorMessage message;
  ToProto(command, message.mutable_command());
  if (const size_t bytes = message.ByteSizeLong(); bytes > kMaxMessageBytes) {
    // The planner keeps to its cap; the group could not read this.
    LogError("command ", command.id.value, " for ", Name(info_), " has ", bytes, " bytes");
    std::lock_guard lock(write_mutex_);
    if (!finished_) context_->TryCancel();
    return;
  }
  Write(std::move(message));
}

void GroupStream::SendLeave() {
  v1::CoordinatorMessage message;
  message.mutable_leave();
  Write(std::move(message));
}

void GroupStream::Write(v1::CoordinatorMessage message) {
  std::lock_guard lock(write_mutex_);
  if (ending_) return;
  outgoing_.push_back(std::move(message));
  if (!writing_) WriteNextLocked();
}

void GroupStream::OnWriteDone(bool ok) {
  std::lock_guard lock(write_mutex_);
  writing_ = false;
  outgoing_.pop_front();
  if (!ok) outgoing_.clear();  // the read side hears of the loss
  WriteNextLocked();
}

void GroupStream::WriteNextLocked() {
  if (!outgoing_.empty()) {
    writing_ = true;
    StartWrite(&outgoing_.front());
  } else if (ending_ && !finished_) {
    finished_ = true;
    Finish(end_status_);
  }
}

void GroupStream::End(const absl::Status& status) {
  std::lock_guard lock(write_mutex_);
  if (ending_) return;
  ending_ = true;
  end_status_ =
      grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
  if (!writing_) WriteNextLocked();
}

void GroupStream::OnCancel() {
  Lose(absl::UnavailableError("the connection to the group broke"));
  End(absl::CancelledError("cancelled"));
}

void GroupStream::OnDone() { self_.reset(); }

}  // namespace rootstock
