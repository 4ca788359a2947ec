#include "worker/link/leader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/wire/plan_wire.h"

namespace rootstock {
namespace {

constexpr auto kFirstBackoff = std::chrono::milliseconds(100);
constexpr auto kLongestBackoff = std::chrono::seconds(2);
constexpr auto kTellEvery = std::chrono::seconds(5);
constexpr auto kGoodbye = std::chrono::seconds(2);
constexpr auto kFirstCollectPause = std::chrono::milliseconds(1);
constexpr auto kLongestCollectPause = std::chrono::milliseconds(32);

std::string Text(const Epoch& epoch) { return absl::StrCat(epoch.incarnation, ".", epoch.attach); }

}  // namespace

Leader::Leader(GroupBus& bus, Member& member, Inbox& inbox, Connect connect,
               std::string coordinator)
    : bus_(bus),
      member_(member),
      inbox_(inbox),
      connect_(std::move(connect)),
      coordinator_(std::move(coordinator)),
      backoff_(kFirstBackoff),
      connect_at_(Clock::now()),
      told_at_(Clock::time_point::min()),
      collect_pause_(kFirstCollectPause) {}

absl::StatusOr<int> Leader::Run() {
  while (!ended_.has_value()) {
    if (state_ == State::kIdle && Clock::now() >= connect_at_) OpenNext();
    auto event = inbox_.Pop(Deadline());
    if (!event.has_value() && collect_at_.has_value() && Clock::now() >= *collect_at_) {
      collect_pause_ = std::min<Clock::duration>(collect_pause_ * 2, kLongestCollectPause);
      event = LinkEvent{LinkEvent::Kind::kCollect, 0, {}, {}};
    } else {
      collect_pause_ = kFirstCollectPause;
    }
    if (event.has_value()) Handle(std::move(*event));
  }
  if (stream_ == nullptr || !ended_->ok()) return *ended_;
  // The coordinator learns from the stream's orderly end that the group is gone.
  stream_->Finish();
  const Clock::time_point deadline = Clock::now() + kGoodbye;
  while (auto event = inbox_.Pop(deadline)) {
    if (event->kind == LinkEvent::Kind::kLost && event->stream == stream_number_) {
      return *ended_;
    }
  }
  stream_->Cancel();
  return *ended_;
}

Leader::Clock::time_point Leader::Deadline() const {
  if (state_ == State::kIdle) return connect_at_;
  if (state_ == State::kConnecting) return Clock::time_point::max();
  return collect_at_.value_or(Clock::time_point::max());
}

void Leader::OpenNext() {
  state_ = State::kConnecting;
  stream_ = connect_(++stream_number_);
}

void Leader::Handle(LinkEvent event) {
  const bool of_stream =
      event.kind == LinkEvent::Kind::kMessage || event.kind == LinkEvent::Kind::kLost;
  if (of_stream && (event.stream != stream_number_ || stream_ == nullptr)) return;
  switch (event.kind) {
    case LinkEvent::Kind::kMessage:
      return OnMessage(event.message);
    case LinkEvent::Kind::kLost:
      return OnLost(event.why);
    case LinkEvent::Kind::kCollect:
      if (state_ == State::kAttached || state_ == State::kDraining) {
        Complete(RunEverywhere({BusKind::kCollect, ""}));
      }
      return;
    case LinkEvent::Kind::kDrain:
      return OnDrain();
    case LinkEvent::Kind::kStepDone:
      // An attach between has completed what ran.
      if (member_.has_running()) Complete(RunEverywhere({BusKind::kFinish, ""}));
      return;
  }
}

void Leader::OnMessage(const v1::CoordinatorMessage& message) {
  switch (message.message_case()) {
    case v1::CoordinatorMessage::kAttach:
      return OnAttach(message.attach());
    case v1::CoordinatorMessage::kCommand:
      return OnCommand(message.command());
    case v1::CoordinatorMessage::kRefuse:
      return Exit(1,
                  absl::StrCat("the coordinator refuses this group: ", message.refuse().message()));
    case v1::CoordinatorMessage::kLeave:
      LogInfo("drained: the group leaves");
      return Exit(0, "");
    case v1::CoordinatorMessage::MESSAGE_NOT_SET:
      LogWarning("a message of the coordinator is empty, or newer than this build");
  }
}

void Leader::OnAttach(const v1::AttachOrder& order) {
  const Epoch epoch{order.epoch().incarnation(), order.epoch().attach()};
  if (epoch <= epoch_) {
    // Its incarnation is durable: this one has another --data, and nothing that it orders is above.
    return Exit(1, absl::StrCat("the coordinator at ", coordinator_, " orders epoch ", Text(epoch),
                                ", which is not above ", Text(epoch_),
                                ", obeyed before: its --data is new or an older copy. The group "
                                "ends; started again it attaches"));
  }
  const Answers answers = RunEverywhere({BusKind::kAttach, order.SerializeAsString()});
  if (answers.reports.empty()) return;
  epoch_ = epoch;
  v1::GroupMessage message;
  ToProto(answers.reports[0], message.mutable_report());
  stream_->Send(std::move(message));
  state_ = State::kAttached;
  backoff_ = kFirstBackoff;
  LogInfo("attached to ", coordinator_, " in epoch ", Text(epoch), " with ",
          answers.reports[0].adapters.size(), " adapters in place");
}

void Leader::OnCommand(const v1::Command& command) {
  const Epoch epoch{command.epoch().incarnation(), command.epoch().attach()};
  if (state_ == State::kConnecting || epoch != epoch_) {
    LogWarning("a command of epoch ", Text(epoch), " is not obeyed in ", Text(epoch_));
    return;
  }
  Complete(RunEverywhere({BusKind::kCommand, command.SerializeAsString()}));
}

void Leader::OnLost(const absl::Status& why) {
  const bool attached = state_ == State::kAttached || state_ == State::kDraining;
  stream_.reset();
  if (state_ == State::kDraining) {
    Exit(0, "");
    return;
  }
  const Clock::time_point now = Clock::now();
  if (attached) {
    LogWarning("lost the coordinator at ", coordinator_, ": ", std::string(why.message()));
  } else if (now - kTellEvery >= told_at_) {
    told_at_ = now;
    LogInfo("waiting for the coordinator at ", coordinator_, ": ", std::string(why.message()));
  }
  state_ = State::kIdle;
  connect_at_ = now + backoff_;
  backoff_ = std::min<Clock::duration>(backoff_ * 2, kLongestBackoff);
}

void Leader::OnDrain() {
  if (state_ == State::kIdle || state_ == State::kConnecting) {
    LogInfo("asked to leave while not attached");
    return Exit(0, "");
  }
  if (state_ == State::kDraining) {
    LogInfo("asked to leave again: the drain ends here");
    return Exit(0, "");
  }
  LogInfo("asked to leave: draining");
  state_ = State::kDraining;
  v1::GroupMessage message;
  message.mutable_leaving();
  stream_->Send(std::move(message));
}

Answers Leader::RunEverywhere(BusMessage message) {
  bus_.Send(message);
  absl::StatusOr<Answers> answers = member_.Handle(message);
  collect_at_ = std::nullopt;
  if (member_.waits_for_others()) collect_at_ = Clock::now() + collect_pause_;
  if (answers.ok()) return *std::move(answers);
  ended_ = answers.status();
  return {};
}

void Leader::Complete(const Answers& answers) {
  for (const Completion& completion : answers.completions) {
    v1::GroupMessage message;
    ToProto(completion, message.mutable_completion());
    if (stream_ != nullptr) stream_->Send(std::move(message));
  }
}

void Leader::Exit(int code, const std::string& reason) {
  if (!reason.empty()) LogError(reason);
  bus_.Send({BusKind::kExit, reason});
  ended_ = code;
}

}  // namespace rootstock
