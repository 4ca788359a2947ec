// Runs as a group of one, and of several under mpirun: every rank runs every test.
#include "worker/link/group_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "worker/link/coordinator_client.h"
#include "worker/link/leader.h"
#include "worker/link/link_rig.h"
#include "worker/link/rendezvous.h"

namespace rootstock {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using namespace std::chrono_literals;

constexpr Epoch kFirst{1, 1};

StepPlan Rows(int n) {
  StepPlan plan;
  for (int i = 0; i < n; ++i) {
    plan.rows.push_back({SequenceSlot(i), 1, 5, {}, {}, RowOutput::kToken});
  }
  return plan;
}

TEST(GroupLink, EveryRankExecutesTheSameCommands) {
  LinkRig rig;
  const int code = rig.Run([&](ScriptedStream& s, int) {
    const GroupInfo hello = s.ReadHello();
    EXPECT_EQ(hello.name, "g");
    EXPECT_EQ(hello.tp_size, static_cast<uint32_t>(rig.bus.tp_size()));
    s.Order(kFirst, {2048, 32, 512, 20});
    EXPECT_EQ(s.ReadReport().geometry.num_pages, 100u);
    s.Send(CommandId(1), kFirst, Rows(3));
    s.Send(CommandId(2), kFirst, LoadAdapter{Sha256Of("a"), 1, {}, {PageId(3)}});
    s.Send(CommandId(3), kFirst, StepPlan{});
    s.Send(CommandId(4), kFirst, ReleaseSlots{{SequenceSlot(1)}});
    std::vector<uint64_t> steps;
    for (int i = 0; i < 4; ++i) {
      const Completion c = s.ReadCompletion();
      if (c.id.value != 2) steps.push_back(c.id.value);  // the load's comes when it may
      EXPECT_TRUE(c.outcome.ok()) << c.outcome;
      EXPECT_EQ(c.step.rows.size(), c.id.value == 1 ? 3u : 0u);
    }
    EXPECT_THAT(steps, ElementsAre(1, 3, 4));
    s.Leave();
    EXPECT_TRUE(s.AtEnd());
    return grpc::Status::OK;
  });
  EXPECT_EQ(code, 0);
  EXPECT_THAT(rig.executor.log, ElementsAre("attach 1.1 seqs=32", "step 1 rows=3", "load 2",
                                            "step 3 rows=0", "other 4"));
}

TEST(GroupLink, OneRanksFailedLoadFailsEverywhere) {
  LinkRig rig;
  rig.executor.fail_loads = rig.last();
  const int code = rig.Run([&](ScriptedStream& s, int) {
    s.Attach(kFirst);
    s.Send(CommandId(1), kFirst, LoadAdapter{Sha256Of("a"), 1, {}, {PageId(3)}});
    const Completion c = s.ReadCompletion();
    EXPECT_EQ(c.outcome.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(GetErrorDetail(c.outcome)->reason, Reason::kIoError);
    if (rig.bus.tp_size() > 1) {
      EXPECT_THAT(std::string(c.outcome.message()),
                  HasSubstr(absl::StrCat("tp_rank ", rig.bus.tp_size() - 1)));
    }
    s.Leave();
    s.AtEnd();
    return grpc::Status::OK;
  });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(rig.executor.resident.empty());
  EXPECT_EQ(rig.executor.log.back(), "abandon 1");  // where it went well and where it did not
}

// A step with rows, and nothing else, tells every rank how long each worked.
TEST(GroupLink, WorkOfEveryRankRidesInTheAgreement) {
  LinkRig rig;
  rig.executor.own_work_us = 100 + rig.bus.tp_rank();
  const int code = rig.Run([&](ScriptedStream& s, int) {
    s.Attach(kFirst);
    s.Send(CommandId(1), kFirst, Rows(1));
    s.Send(CommandId(2), kFirst, StepPlan{});
    s.Send(CommandId(3), kFirst, LoadAdapter{Sha256Of("a"), 1, {}, {PageId(3)}});
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(s.ReadCompletion().outcome.ok());
    s.Leave();
    s.AtEnd();
    return grpc::Status::OK;
  });
  EXPECT_EQ(code, 0);
  std::vector<uint64_t> expected;
  for (int r = 0; r < rig.bus.tp_size(); ++r) expected.push_back(100 + r);
  EXPECT_THAT(rig.executor.work, ElementsAre(expected));
}

TEST(GroupLink, RefusedGroupExitsNonZero) {
  LinkRig rig;
  EXPECT_EQ(rig.Run([](ScriptedStream& s, int) {
    s.ReadHello();
    s.Refuse("another model is served here");
    s.AtEnd();
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "refused");
  }),
            1);
  EXPECT_TRUE(rig.executor.log.empty());
}

// A loss drops what was queued; the next attach finds the adapters in place.
TEST(GroupLink, LossThenAttachAnew) {
  LinkRig rig;
  std::atomic<bool> started{false}, gone{false};
  rig.executor.before = [&](const Command& command) {
    // Holds the second command until the stream is gone, so that the third is queued then.
    if (!rig.first() || command.id.value != 2) return;
    started = true;
    while (!gone) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(100ms);
  };
  const int code = rig.Run([&](ScriptedStream& s, int n) {
    if (n == 0) {
      s.Attach({4, 1});
      s.Send(CommandId(1), {4, 1}, LoadAdapter{Sha256Of("a"), 1, {}, {PageId(3)}});
      EXPECT_TRUE(s.ReadCompletion().outcome.ok());
      s.Send(CommandId(2), {4, 1}, StepPlan{});
      while (!started) std::this_thread::sleep_for(1ms);
      s.Send(CommandId(3), {4, 1}, StepPlan{});
      gone = true;
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting");
    }
    const AttachReport report = s.Attach({5, 1});
    EXPECT_EQ(report.adapters.size(), 1u);
    s.Send(CommandId(9), {4, 1}, StepPlan{});  // of the old epoch
    s.Send(CommandId(1), {5, 1}, StepPlan{});
    const Completion c = s.ReadCompletion();
    EXPECT_EQ(c.id.value, 1u);
    s.Leave();
    s.AtEnd();
    return grpc::Status::OK;
  });
  EXPECT_EQ(code, 0);
  EXPECT_THAT(rig.executor.log, ElementsAre("attach 4.1 seqs=64", "load 1", "step 2 rows=0",
                                            "attach 5.1 seqs=64", "step 1 rows=0"));
}

TEST(GroupLink, ObeysOnlyHigherEpochs) {
  LinkRig rig;
  const int code = rig.Run([&](ScriptedStream& s, int n) {
    if (n == 0) {
      s.Attach({4, 7});
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost");
    }
    s.Attach({4, 8});
    s.Leave();
    s.AtEnd();
    return grpc::Status::OK;
  });
  EXPECT_EQ(code, 0);
  EXPECT_THAT(rig.executor.log, ElementsAre("attach 4.7 seqs=64", "attach 4.8 seqs=64"));
}

// It would be offered lower ones for ever: a supervisor starts the group anew.
TEST(GroupLink, ACoordinatorThatLostItsDataEndsTheGroup) {
  for (const Epoch& lower : {Epoch{4, 7}, Epoch{4, 6}, Epoch{1, 9}}) {
    LinkRig rig;
    const int code = rig.Run([&](ScriptedStream& s, int n) {
      EXPECT_LT(n, 2);
      if (n == 0) {
        s.Attach({4, 7});
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost");
      }
      s.ReadHello();
      s.Order(lower);
      EXPECT_TRUE(s.AtEnd());
      return grpc::Status::OK;
    });
    EXPECT_EQ(code, 1);
    EXPECT_THAT(rig.executor.log, ElementsAre("attach 4.7 seqs=64"));
  }
}

// PROTOCOL §3: plan N+1 reaches the group while N runs, before anybody has result N.
TEST(GroupLink, PlanArrivesBeforeTheResultOfTheOneBefore) {
  LinkRig rig;
  const FakeCoordinator::Script script = [&](ScriptedStream& s, int) {
    s.Attach(kFirst);
    s.Send(CommandId(1), kFirst, Rows(1));
    s.Send(CommandId(2), kFirst, Rows(1));
    EXPECT_EQ(s.ReadCompletion().id.value, 1u);
    EXPECT_EQ(s.ReadCompletion().id.value, 2u);
    s.Leave();
    s.AtEnd();
    return grpc::Status::OK;
  };
  if (!rig.first()) {
    EXPECT_EQ(rig.RunAt("127.0.0.1:1"), 0);
    return;
  }
  const auto inbox = std::make_shared<Inbox>();
  uint64_t received_during_first = 0;
  rig.executor.before = [&](const Command& command) {
    if (command.id.value != 1) return;
    const auto deadline = std::chrono::steady_clock::now() + 10s;
    while (inbox->commands_received() < 2 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(1ms);
    }
    received_during_first = inbox->commands_received();
  };
  FakeCoordinator coordinator(script);
  const auto channel = MakeChannel(absl::StrCat("127.0.0.1:", coordinator.port()));
  BlobCache disk = rig.Disk();
  Member member(rig.bus, rig.executor, disk, nullptr, {});
  const auto connect = [&](uint64_t number) {
    return OpenStream(channel, number, rig.Info(), inbox);
  };
  const auto code = Leader(rig.bus, member, *inbox, connect, "here").Run();
  EXPECT_EQ(code.value_or(-1), 0);
  EXPECT_EQ(received_during_first, 2u);
}

// On a device that runs beside the host a plan is started behind the one that runs, and results
// come when they are there.
TEST(GroupLink, StepsThatAreLeftRunningCompleteInTurn) {
  LinkRig rig;
  rig.executor.steps_running = 1;
  const int code = rig.Run([&](ScriptedStream& s, int) {
    s.Attach(kFirst);
    s.Send(CommandId(1), kFirst, Rows(1));
    s.Send(CommandId(2), kFirst, Rows(2));
    const Completion first = s.ReadCompletion();
    EXPECT_EQ(first.id.value, 1u);
    EXPECT_EQ(first.step.rows.size(), 1u);
    s.Send(CommandId(3), kFirst, ReleaseSlots{{SequenceSlot(9)}});
    EXPECT_EQ(s.ReadCompletion().id.value, 3u);
    EXPECT_EQ(s.ReadCompletion().id.value, 2u);
    s.Leave();
    s.AtEnd();
    return grpc::Status::OK;
  });
  EXPECT_EQ(code, 0);
  EXPECT_THAT(rig.executor.log, ElementsAre("attach 1.1 seqs=64", "step 1 rows=1", "step 2 rows=2",
                                            "finish 1", "other 3", "finish 2"));
}

// Of one step in sixteen each rank learns how long the others' hosts worked.
TEST(GroupLink, WorkOfStepsThatAreLeftRunningIsSharedNowAndThen) {
  LinkRig rig;
  rig.executor.steps_running = 1;
  rig.executor.own_work_us = 100 + rig.bus.tp_rank();
  const int code = rig.Run([&](ScriptedStream& s, int) {
    s.Attach(kFirst);
    for (int i = 1; i <= 17; ++i) s.Send(CommandId(i), kFirst, Rows(1));
    s.Send(CommandId(18), kFirst, ReleaseSlots{{SequenceSlot(9)}});
    for (int i = 0; i < 18; ++i) EXPECT_TRUE(s.ReadCompletion().outcome.ok());
    s.Leave();
    s.AtEnd();
    return grpc::Status::OK;
  });
  EXPECT_EQ(code, 0);
  std::vector<uint64_t> expected;
  for (int r = 0; r < rig.bus.tp_size(); ++r) expected.push_back(100 + r);
  const size_t times = rig.bus.tp_size() == 1 ? 0 : 2;
  EXPECT_THAT(rig.executor.work, AllOf(SizeIs(times), Each(expected)));
}

TEST(GroupLink, UndecodableCommandFailsAlone) {
  LinkRig rig;
  const int code = rig.Run([&](ScriptedStream& s, int) {
    s.Attach(kFirst);
    v1::CoordinatorMessage message;
    message.mutable_command()->set_id(8);
    message.mutable_command()->mutable_epoch()->set_incarnation(1);
    message.mutable_command()->mutable_epoch()->set_attach(1);
    message.mutable_command()->mutable_load()->set_digest("short");
    s.Send(message);
    const Completion bad = s.ReadCompletion();
    EXPECT_EQ(bad.id.value, 8u);
    EXPECT_EQ(GetErrorDetail(bad.outcome)->field, "command.load.digest");
    s.Send(CommandId(9), kFirst, StepPlan{});
    EXPECT_TRUE(s.ReadCompletion().outcome.ok());
    s.Leave();
    s.AtEnd();
    return grpc::Status::OK;
  });
  EXPECT_EQ(code, 0);
}

TEST(GroupLink, SignalAsksToLeave) {
  for (const int signal : {SIGUSR1, SIGTERM}) {
    LinkRig rig;
    EXPECT_EQ(rig.Run([&](ScriptedStream& s, int) {
      s.Attach(kFirst);
      kill(getpid(), signal);
      EXPECT_TRUE(s.ReadLeaving());
      s.Send(CommandId(1), kFirst, Rows(1));  // what runs still ends
      EXPECT_TRUE(s.ReadCompletion().outcome.ok());
      s.Leave();
      EXPECT_TRUE(s.AtEnd());
      return grpc::Status::OK;
    }),
              0);
  }
}

// Whoever wrote to the wrong rank is told so, and the group goes on.
TEST(GroupLink, SignalToAnotherRankIsToldOf) {
  LinkRig rig;
  const bool asked = rig.last() && !rig.first();
  rig.executor.before = [&](const Command&) {
    if (!asked) return;
    kill(getpid(), SIGTERM);
    sigset_t pending;
    do {
      sigpending(&pending);
    } while (sigismember(&pending, SIGTERM) == 1);
  };
  testing::internal::CaptureStderr();
  EXPECT_EQ(rig.Run([&](ScriptedStream& s, int) {
    s.Attach(kFirst);
    s.Send(CommandId(1), kFirst, Rows(1));
    EXPECT_TRUE(s.ReadCompletion().outcome.ok());
    s.Leave();
    EXPECT_TRUE(s.AtEnd());
    return grpc::Status::OK;
  }),
            0);
  const bool told =
      testing::internal::GetCapturedStderr().find("only tp_rank 0 obeys") != std::string::npos;
  EXPECT_EQ(told, asked);
}

TEST(GroupLink, WaitsForAnAbsentCoordinator) {
  LinkRig rig;
  int port = 0;
  if (rig.first())
    port = FakeCoordinator([](ScriptedStream&, int) { return grpc::Status::OK; }).port();
  port = std::stoi(rig.bus.AllGather(std::to_string(port))[0]);
  std::unique_ptr<FakeCoordinator> late;
  std::thread starter([&] {
    if (!rig.first()) return;
    std::this_thread::sleep_for(400ms);
    late = std::make_unique<FakeCoordinator>(
        [](ScriptedStream& s, int) {
          s.Attach(kFirst);
          s.Leave();
          s.AtEnd();
          return grpc::Status::OK;
        },
        port);
  });
  EXPECT_EQ(rig.RunAt(absl::StrCat("127.0.0.1:", port)), 0);
  starter.join();
  EXPECT_EQ(rig.executor.log.size(), 1u);
}

TEST(GroupLink, SignalBeforeAnAttachEndsTheGroup) {
  LinkRig rig;
  std::thread killer([&] {
    std::this_thread::sleep_for(200ms);
    if (rig.first()) kill(getpid(), SIGUSR1);
  });
  EXPECT_EQ(rig.RunAt("127.0.0.1:1"), 0);
  killer.join();
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + 1e-6 * t.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(GroupLink, IdleRanksBurnNoCore) {
  LinkRig rig;
  const double before = CpuSeconds();
  EXPECT_EQ(rig.Run([&](ScriptedStream& s, int) {
    s.Attach(kFirst);
    std::this_thread::sleep_for(1000ms);
    s.Leave();
    s.AtEnd();
    return grpc::Status::OK;
  }),
            0);
  EXPECT_LT(CpuSeconds() - before, 0.3);
}

RankHello HelloOf(int tp_rank) {
  return {{"host", "cpu", "build-1", 1, 9500},
          Sha256Of("model"),
          "small",
          {100, 1024, 16},
          DType::kF32,
          "g",
          "cpu",
          "none"};
}

TEST(Rendezvous, AgreesOnTheSmallestGeometry) {
  LinkRig rig;
  RankHello mine = HelloOf(rig.bus.tp_rank());
  mine.rank.pid = rig.bus.tp_rank();
  mine.geometry.num_pages = 200 - rig.bus.tp_rank();
  const auto group = Rendezvous(rig.bus, mine);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ(group->geometry.num_pages, 200u - (rig.bus.tp_size() - 1));
  EXPECT_EQ(group->info.tp_size, static_cast<uint32_t>(rig.bus.tp_size()));
  for (int r = 0; r < rig.bus.tp_size(); ++r) {
    EXPECT_EQ(group->info.ranks[r].pid, static_cast<uint32_t>(r));
  }
}

TEST(Rendezvous, PagesMayBeFoundAtTheFirstAttach) {
  LinkRig rig;
  RankHello mine = HelloOf(rig.bus.tp_rank());
  mine.geometry.num_pages = 0;
  const auto group = Rendezvous(rig.bus, mine);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ(group->geometry, (PageGeometry{0, 1024, 16}));
}

// Every rank learns which one differs, and in what.
TEST(Rendezvous, MismatchNamesRankAndValues) {
  LinkRig rig;
  if (rig.bus.tp_size() == 1) {
    EXPECT_TRUE(Rendezvous(rig.bus, HelloOf(0)).ok());
    return;
  }
  const std::string rank = absl::StrCat("tp_rank ", rig.bus.tp_size() - 1);
  RankHello mine = HelloOf(rig.bus.tp_rank());
  if (rig.last()) mine.rank.build = "build-2";
  absl::Status status = Rendezvous(rig.bus, mine).status();
  EXPECT_EQ(GetErrorDetail(status)->field, "build");
  EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kGroupMismatch);
  EXPECT_THAT(std::string(status.message()), HasSubstr(rank));
  EXPECT_THAT(std::string(status.message()), HasSubstr("build-2"));
  mine = HelloOf(rig.bus.tp_rank());
  if (rig.last()) {
    mine.model_fingerprint = Sha256Of("other");
    mine.model_name = "large";
  }
  status = Rendezvous(rig.bus, mine).status();
  EXPECT_EQ(GetErrorDetail(status)->field, "model");
  EXPECT_THAT(std::string(status.message()), HasSubstr("large"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("small"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(rank));
}

TEST(Rendezvous, MixedDevicesAndLibrariesAreRefused) {
  LinkRig rig;
  if (rig.bus.tp_size() == 1) return;
  RankHello mine = HelloOf(rig.bus.tp_rank());
  if (rig.last()) mine.device_kind = "NVIDIA H200";
  absl::Status status = Rendezvous(rig.bus, mine).status();
  EXPECT_EQ(GetErrorDetail(status)->field, "device kind");
  EXPECT_THAT(std::string(status.message()), HasSubstr("NVIDIA H200"));
  mine = HelloOf(rig.bus.tp_rank());
  if (rig.last()) mine.nccl = "2.27.3";
  status = Rendezvous(rig.bus, mine).status();
  EXPECT_EQ(GetErrorDetail(status)->field, "NCCL");
  EXPECT_THAT(std::string(status.message()), HasSubstr("2.27.3"));
}

TEST(Rendezvous, TwoRanksOnOneGpuAreRefused) {
  LinkRig rig;
  RankHello mine = HelloOf(rig.bus.tp_rank());
  mine.device_kind = "NVIDIA H200";
  mine.rank.device = absl::StrCat("GPU-", rig.bus.tp_rank());
  EXPECT_TRUE(Rendezvous(rig.bus, mine).ok());
  if (rig.bus.tp_size() == 1) return;
  if (rig.last()) mine.rank.device = "GPU-0";
  const absl::Status status = Rendezvous(rig.bus, mine).status();
  EXPECT_EQ(GetErrorDetail(status)->field, "device");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("of tp_rank 0 and of tp_rank ", rig.bus.tp_size() - 1)));
}

}  // namespace
}  // namespace rootstock
