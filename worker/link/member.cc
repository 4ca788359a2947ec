#include "worker/link/member.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/plan_wire.h"
#include "rootstock/v1/group.pb.h"

namespace rootstock {
namespace {

constexpr uint64_t kStepsToShare = 16;

}  // namespace

Member::Member(GroupBus& bus, CommandExecutor& executor, BlobCache cache, Prefetcher* prefetcher,
               std::function<void()> on_step_done)
    : bus_(bus),
      executor_(executor),
      cache_(std::move(cache)),
      prefetcher_(prefetcher),
      on_step_done_(std::move(on_step_done)) {}

absl::StatusOr<Answers> Member::Handle(const BusMessage& message) {
  Answers answers;
  switch (message.kind) {
    case BusKind::kAttach: {
      ASSIGN_OR_RETURN(AttachReport report, Attach(message.bytes));
      answers.reports.push_back(std::move(report));
      break;
    }
    case BusKind::kCommand:
      RETURN_IF_ERROR(Run(message.bytes, answers));
      break;
    case BusKind::kCollect:
      Collect(answers);
      break;
    case BusKind::kFinish:
      RETURN_IF_ERROR(Finish(answers));
      Collect(answers);
      break;
    case BusKind::kExit:
      break;
  }
  return answers;
}

absl::StatusOr<AttachReport> Member::Attach(const std::string& bytes) {
  prefetches_.clear();
  if (prefetcher_ != nullptr) prefetcher_->ForgetAll();
  v1::AttachOrder wire;
  wire.ParseFromString(bytes);
  ASSIGN_OR_RETURN(const AttachOrder order, FromProto(wire));
  absl::StatusOr<AttachReport> report = executor_.Attach(order.epoch, order.limits);
  RETURN_IF_ERROR(bus_.Agree(report.status()));
  // Loads are conjunctions, so all ranks hold the same adapters; anything else is a bug of ours.
  v1::AttachReport mine;
  ToProto(*report, &mine);
  for (const std::string& other : bus_.AllGather(mine.SerializeAsString())) {
    if (other == mine.SerializeAsString()) continue;
    return absl::InternalError("tp_ranks report different adapters or pages at attach");
  }
  return report;
}

absl::Status Member::Run(const std::string& bytes, Answers& answers) {
  v1::Command wire;
  wire.ParseFromString(bytes);
  absl::StatusOr<Command> command = FromProto(wire);
  if (!command.ok()) {  // the same bytes, so the same on every rank
    answers.completions.push_back({CommandId(wire.id()), command.status(), {}});
    return absl::OkStatus();
  }
  if (const auto* prefetch = std::get_if<PrefetchAdapter>(&command->kind)) {
    prefetches_.push_back(command->id);
    if (prefetcher_ != nullptr) prefetcher_->Start(command->id, prefetch->digest);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Execute(*command, answers));
  if (std::holds_alternative<StepPlan>(command->kind)) Collect(answers);
  return absl::OkStatus();
}

absl::Status Member::Execute(const Command& command, Answers& answers) {
  ASSIGN_OR_RETURN(std::optional<Completion> started, executor_.Start(command));
  if (!started.has_value()) {
    if (on_step_done_) executor_.NotifyWhenDone(on_step_done_);
    return ShareWork();
  }
  Completion completion = *std::move(started);
  const auto* drop = std::get_if<DropAdapter>(&command.kind);
  if (drop != nullptr && drop->tiers.has(Tier::kDisk) && prefetcher_ != nullptr &&
      completion.outcome.ok()) {
    completion.outcome = cache_.Remove(drop->digest);
  }
  std::vector<uint64_t> work_us;
  const bool loads = std::holds_alternative<LoadAdapter>(command.kind);  // from disk
  const absl::Status joint =
      bus_.Agree(completion.outcome, executor_.work_us(), work_us, /*at_once=*/!loads);
  if (completion.outcome.ok() && !joint.ok()) executor_.Abandon(command);
  const auto* step = std::get_if<StepPlan>(&command.kind);
  if (step != nullptr && !step->rows.empty() && joint.ok()) executor_.ObserveWork(work_us);
  completion.outcome = joint;
  answers.completions.push_back(std::move(completion));
  return absl::OkStatus();
}

// The device works meanwhile, yet not every step is worth the exchange.
absl::Status Member::ShareWork() {
  if (left_running_++ % kStepsToShare != 0 || bus_.tp_size() == 1) return absl::OkStatus();
  std::vector<uint64_t> work_us;
  RETURN_IF_ERROR(bus_.Agree(absl::OkStatus(), executor_.work_us(), work_us, /*at_once=*/true));
  executor_.ObserveWork(work_us);
  return absl::OkStatus();
}

// Nothing can fail on one rank alone once a step runs.
absl::Status Member::Finish(Answers& answers) {
  ASSIGN_OR_RETURN(Completion completion, executor_.Finish());
  answers.completions.push_back(std::move(completion));
  return absl::OkStatus();
}

void Member::Collect(Answers& answers) {
  if (prefetches_.empty()) return;
  // A letter a prefetch, in one exchange: + done, ! failed, . running.
  std::string mine;
  for (const CommandId id : prefetches_) {
    const std::optional<absl::Status> outcome =
        prefetcher_ == nullptr ? absl::OkStatus() : prefetcher_->OutcomeOf(id);
    mine.push_back(!outcome.has_value() ? '.' : outcome->ok() ? '+' : '!');
  }
  const std::vector<std::string> all = bus_.AllGather(mine);
  std::deque<CommandId> running;
  for (size_t i = 0; i < prefetches_.size(); ++i) {
    const CommandId id = prefetches_[i];
    bool ended = true, failed = false;
    for (const std::string& rank : all) {
      ended &= rank[i] != '.';
      failed |= rank[i] == '!';
    }
    if (!ended) {
      running.push_back(id);
      continue;
    }
    const std::optional<absl::Status> outcome =
        prefetcher_ == nullptr ? absl::OkStatus() : prefetcher_->OutcomeOf(id);
    answers.completions.push_back(
        {id, failed ? bus_.Agree(outcome.value_or(absl::OkStatus())) : absl::OkStatus(), {}});
    if (prefetcher_ != nullptr) prefetcher_->Forget(id);
  }
  prefetches_ = std::move(running);
}

}  // namespace rootstock
