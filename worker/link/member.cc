#include "worker/link/member.h"

#include <algorithm>
#include <cstring>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/wire/plan_wire.h"
#include "rootstock/v1/group.pb.h"

namespace rootstock {
namespace {

constexpr uint64_t kStepsToShare = 16;

}  // namespace

Member::Member(GroupBus& bus, CommandExecutor& executor, BlobCache& cache, Prefetcher* prefetcher,
               std::function<void()> on_step_done)
    : bus_(bus),
      executor_(executor),
      cache_(cache),
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
      RETURN_IF_ERROR(Collect(answers));
      break;
    case BusKind::kFinish:
      RETURN_IF_ERROR(Finish(answers));
      RETURN_IF_ERROR(Collect(answers));
      break;
    case BusKind::kExit:
      break;
  }
  for (Completion& completion : answers.completions) TellChanges(completion);
  return answers;
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
    if (prefetcher_ != nullptr) prefetcher_->Start(command->id, prefetch->digest, prefetch->bytes);
    beside_.push_back({*std::move(command), /*on_node=*/true});
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Execute(*command, answers));
  return std::holds_alternative<StepPlan>(command->kind) ? Collect(answers) : absl::OkStatus();
}

absl::Status Member::Execute(const Command& command, Answers& answers) {
  if (const auto* step = std::get_if<StepPlan>(&command.kind); step != nullptr && step->eager) {
    // What fails on one rank fails on all before any of them begins.
    const absl::Status joint = bus_.Agree(executor_.adapters().AwaitLoads(*step));
    if (!joint.ok()) {
      answers.completions.push_back({command.id, joint, {}});
      return absl::OkStatus();
    }
  }
  if (const auto* drop = std::get_if<DropAdapter>(&command.kind);
      drop && IsUnderWay(drop->digest)) {
    // A rank that comes late would find its content gone.
    answers.completions.push_back(
        {command.id,
         MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInvalidArgument, "drop.digest",
                   drop->digest.Short(), "is being loaded"),
         {}});
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(std::optional<Completion> started, executor_.Start(command));
  if (started.has_value()) return AfterStart(command, *std::move(started), answers);
  if (const auto* load = std::get_if<LoadAdapter>(&command.kind)) {
    // Out of host memory no file is read, yet what is loaded again and again is not to leave first.
    if (prefetcher_ != nullptr) prefetcher_->Touch(load->digest);
    beside_.push_back({command});
    return absl::OkStatus();
  }
  if (on_step_done_) executor_.NotifyWhenDone(on_step_done_);
  return ShareWork();
}

const Digest& Member::DigestOf(const Beside& work) {
  const auto* load = std::get_if<LoadAdapter>(&work.command.kind);
  return load != nullptr ? load->digest : std::get<PrefetchAdapter>(work.command.kind).digest;
}

bool Member::IsUnderWay(const Digest& digest) const {
  return std::any_of(beside_.begin(), beside_.end(),
                     [&](const Beside& work) { return DigestOf(work) == digest; });
}

absl::Status Member::AfterStart(const Command& command, Completion completion, Answers& answers) {
  const auto* drop = std::get_if<DropAdapter>(&command.kind);
  if (drop != nullptr && completion.outcome.ok()) {
    completion.outcome = DropFromDisk(*drop, completion);
  }
  const auto* pin = std::get_if<PinAdapter>(&command.kind);
  if (pin != nullptr && pin->tiers.has(Tier::kDisk) && prefetcher_ != nullptr) {
    cache_.Pin(pin->digest, pin->pinned);
  }
  std::vector<uint64_t> work_us;
  completion.outcome = bus_.Agree(completion.outcome, executor_.work_us(), work_us,
                                  /*at_once=*/true);
  const auto* step = std::get_if<StepPlan>(&command.kind);
  if (step != nullptr && !step->rows.empty() && completion.outcome.ok()) {
    executor_.ObserveWork(work_us);
  }
  if (drop != nullptr) {
    AddFreedEverywhere(completion);
    ShareChanges(TakeChangesHere());
  }
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

absl::Status Member::DropFromDisk(const DropAdapter& drop, Completion& completion) {
  if (!drop.tiers.has(Tier::kDisk) || prefetcher_ == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(completion.freed.disk, cache_.Remove(drop.digest));
  return absl::OkStatus();
}

void Member::AddFreedEverywhere(Completion& completion) {
  std::string mine(sizeof(TierBytes), '\0');
  std::memcpy(mine.data(), &completion.freed, sizeof(TierBytes));
  completion.freed = {};
  for (const std::string& theirs : bus_.AllGatherEqual(mine)) {
    TierBytes freed;
    std::memcpy(&freed, theirs.data(), sizeof(TierBytes));
    completion.freed.device += freed.device;
    completion.freed.host += freed.host;
    completion.freed.disk += freed.disk;
  }
}

// Nothing can fail on one rank alone once a step runs.
absl::Status Member::Finish(Answers& answers) {
  ASSIGN_OR_RETURN(Completion completion, executor_.Finish());
  answers.completions.push_back(std::move(completion));
  return absl::OkStatus();
}

char Member::LetterOf(const Beside& work) {
  if (work.on_node) {
    if (prefetcher_ == nullptr) return '0';  // the node's leader knows
    const auto fetched = prefetcher_->OutcomeOf(work.command.id);
    if (!fetched.has_value()) return '.';
    return fetched->ok() ? static_cast<char>('0' + static_cast<int>((*fetched)->source)) : '!';
  }
  const std::optional<absl::Status> outcome = executor_.adapters().OutcomeOf(work.command.id);
  if (!outcome.has_value()) return '.';
  if (!outcome->ok()) return '!';
  const bool had = executor_.adapters().WasInHost(work.command.id);
  return static_cast<char>('0' + static_cast<int>(had ? FetchSource::kHost : work.source));
}

absl::Status Member::OutcomeHere(const Beside& work) {
  if (!work.on_node) {
    return executor_.adapters().OutcomeOf(work.command.id).value_or(absl::OkStatus());
  }
  if (prefetcher_ == nullptr) return absl::OkStatus();
  const auto fetched = prefetcher_->OutcomeOf(work.command.id);
  return fetched.has_value() ? fetched->status() : absl::OkStatus();
}

absl::Status Member::Collect(Answers& answers) {
  if (beside_.empty()) return absl::OkStatus();
  const std::vector<TierChange> changes = TakeChangesHere();
  std::string mine(1, changes.empty() ? '-' : '+');
  for (const Beside& work : beside_) mine.push_back(LetterOf(work));
  const std::vector<std::string> all = bus_.AllGatherEqual(mine);
  if (std::any_of(all.begin(), all.end(), [](const std::string& r) { return r[0] == '+'; })) {
    ShareChanges(changes);
  }
  waits_for_others_ = false;
  std::deque<Beside> running;
  for (size_t i = 0; i < beside_.size(); ++i) {
    Beside& work = beside_[i];
    bool ended = true, failed = false;
    char slowest = '0';
    for (const std::string& rank : all) {
      const char letter = rank[i + 1];
      ended &= letter != '.';
      failed |= letter == '!';
      if (letter != '.' && letter != '!') slowest = std::max(slowest, letter);
    }
    if (ended) {
      work.source = static_cast<FetchSource>(slowest - '0');
      ASSIGN_OR_RETURN(ended, GoOn(work, failed, answers));
    } else {
      waits_for_others_ |= mine[i + 1] != '.';
    }
    if (!ended) running.push_back(std::move(work));
  }
  beside_ = std::move(running);
  return absl::OkStatus();
}

absl::StatusOr<bool> Member::GoOn(Beside& work, bool failed, Answers& answers) {
  const CommandId id = work.command.id;
  const auto* prefetch = std::get_if<PrefetchAdapter>(&work.command.kind);
  if (work.on_node && prefetcher_ != nullptr) {
    if (const auto fetched = prefetcher_->OutcomeOf(id); fetched.has_value() && fetched->ok()) {
      work.bytes = (*fetched)->bytes;
    }
  }
  if (work.on_node && !failed && prefetch->to_host) {
    work.on_node = false;
    ASSIGN_OR_RETURN(const std::optional<Completion> refused, executor_.Start(work.command));
    if (!refused.has_value()) return false;
    return absl::InternalError("a prefetch was refused");
  }
  if (const absl::Status here = OutcomeHere(work); failed && !here.ok()) {
    LogWarning(
        "adapter ", DigestOf(work).Short(),
        work.on_node ? " was not fetched: " : " was not loaded: ", std::string(here.message()));
  }
  Completion completion{id, failed ? bus_.Agree(OutcomeHere(work)) : absl::OkStatus(), {}};
  if (!work.on_node) RETURN_IF_ERROR(executor_.adapters().Settle(id, completion.outcome));
  if (FetchAgain(work, completion.outcome)) return false;
  if (prefetch != nullptr && completion.outcome.ok()) {
    completion.source = work.source;
    completion.bytes = work.bytes;
  }
  if (prefetch != nullptr && prefetcher_ != nullptr) prefetcher_->Forget(id);
  answers.completions.push_back(std::move(completion));
  return true;
}

// The rank that found it so has removed it, and others may not find it any more.
bool Member::FetchAgain(Beside& work, const absl::Status& outcome) {
  const auto* prefetch = std::get_if<PrefetchAdapter>(&work.command.kind);
  const auto detail = GetErrorDetail(outcome);
  const bool spoilt =
      absl::IsNotFound(outcome) ||
      (absl::IsDataLoss(outcome) && detail && detail->reason == Reason::kDigestMismatch) ||
      (absl::IsUnavailable(outcome) && detail && detail->reason == Reason::kIoError);
  if (prefetch == nullptr || work.on_node || work.again || !spoilt) return false;
  work.on_node = work.again = true;
  if (prefetcher_ != nullptr)
    prefetcher_->Start(work.command.id, prefetch->digest, prefetch->bytes);
  return true;
}

}  // namespace rootstock
