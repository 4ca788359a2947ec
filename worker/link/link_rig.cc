#include "worker/link/link_rig.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/link/signals.h"

namespace rootstock {

absl::StatusOr<AttachReport> RecordingExecutor::Attach(const Epoch& epoch,
                                                       const GroupLimits& limits) {
  log.push_back(
      absl::StrCat("attach ", epoch.incarnation, ".", epoch.attach, " seqs=", limits.max_num_seqs));
  beside_.clear();
  return AttachReport{epoch, {100, 1024, 16}, DType::kF32, resident};
}

absl::StatusOr<std::optional<Completion>> RecordingExecutor::Start(const Command& command) {
  if (before) before(command);
  Completion completion{command.id, absl::OkStatus(), {}};
  if (const auto* step = std::get_if<StepPlan>(&command.kind)) {
    log.push_back(absl::StrCat("step ", command.id.value, " rows=", step->rows.size()));
    for (const PlanRow& row : step->rows) completion.step.rows.push_back({row.slot, {7}});
    if (steps_running > 0) {
      running_.push_back(std::move(completion));
      return std::nullopt;
    }
  } else if (const auto* load = std::get_if<LoadAdapter>(&command.kind)) {
    log.push_back(absl::StrCat("load ", command.id.value));
    Work& work = beside_[command.id] = {*load, looks, absl::OkStatus()};
    if (fail_loads) {
      work.outcome = MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, "digest",
                               load->digest.Short(), "the disk is gone");
    }
    if (looks == 0 && on_loaded_) on_loaded_();
    return std::nullopt;
  } else if (std::holds_alternative<PrefetchAdapter>(command.kind)) {
    log.push_back(absl::StrCat("stage ", command.id.value));
    Work& work = beside_[command.id] = {std::nullopt, looks, absl::OkStatus()};
    if (!stage_outcomes.empty()) {
      work.outcome = stage_outcomes.front();
      stage_outcomes.pop_front();
    }
    if (looks == 0 && on_loaded_) on_loaded_();
    return std::nullopt;
  } else {
    log.push_back(absl::StrCat("other ", command.id.value));
    LetRun(0);
  }
  return completion;
}

absl::StatusOr<Completion> RecordingExecutor::Finish() {
  Completion completion = std::move(running_.front());
  running_.pop_front();
  log.push_back(absl::StrCat("finish ", completion.id.value));
  return completion;
}

void RecordingExecutor::NotifyWhenDone(std::function<void()> done) {
  done_.push_back(std::move(done));
  LetRun(steps_running);
}

void RecordingExecutor::LetRun(size_t most) {
  for (; done_.size() > most; done_.pop_front()) done_.front()();
}

std::optional<absl::Status> RecordingExecutor::OutcomeOf(CommandId id) {
  Work& work = beside_.at(id);
  if (held && held()) return std::nullopt;
  if (work.looks == 0) return work.outcome;
  --work.looks;
  return std::nullopt;
}

absl::Status RecordingExecutor::Settle(CommandId id, const absl::Status& outcome) {
  const Work work = beside_.at(id);
  beside_.erase(id);
  if (!work.load.has_value()) return absl::OkStatus();
  if (outcome.ok()) resident.push_back({work.load->digest, work.load->layout_id, work.load->pages});
  if (!outcome.ok()) log.push_back(absl::StrCat("abandon ", id.value));
  return absl::OkStatus();
}

LinkRig::LinkRig() : bus(MPI_COMM_WORLD) {
  cache = std::filesystem::temp_directory_path() /
          bus.AllGather(absl::StrCat("link_test.", getpid()))[0];
}

LinkRig::~LinkRig() {
  bus.AllGather("");  // nobody needs the files any more
  if (first()) std::filesystem::remove_all(cache);
}

GroupInfo LinkRig::Info() const {
  const auto size = static_cast<uint32_t>(bus.tp_size());
  return {"g", "unified", "build", size, Sha256Of("model"), std::vector<RankInfo>(size)};
}

int LinkRig::RunAt(const std::string& address) {
  BlobCache disk = Disk();
  const auto code = RunGroup(bus, executor, disk, {address, first(), Info(), object_store});
  EXPECT_TRUE(code.ok()) << code.status();
  return code.value_or(-1);
}

int LinkRig::Run(FakeCoordinator::Script script,
                 const std::function<void(FakeCoordinator&)>& prepare) {
  std::unique_ptr<FakeCoordinator> coordinator;
  std::string address;
  if (first()) {
    coordinator = std::make_unique<FakeCoordinator>(std::move(script));
    if (prepare) prepare(*coordinator);
    address = absl::StrCat("127.0.0.1:", coordinator->port());
  }
  address = bus.AllGather(address)[0];
  return RunAt(address);
}

}  // namespace rootstock

int main(int argc, char** argv) {
  rootstock::BlockDrainSignals();
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  testing::InitGoogleTest(&argc, argv);
  rootstock::InitLogging("link_test", rootstock::LogLevel::kInfo);
  const int result = RUN_ALL_TESTS();
  MPI_Finalize();
  return result;
}
