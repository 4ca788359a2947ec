// Adapter content on its way to a node, beside the steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/link/blobs/blob_cache.h"
#include "worker/link/blobs/blob_file.h"
#include "worker/link/link_rig.h"

namespace rootstock {
namespace {

constexpr Epoch kEpoch{1, 1};

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

// A fetch that hangs delays no step, and its completion needs none.
TEST(Prefetch, NeverDelaysAStep) {
  LinkRig rig;
  const std::string content(5000, 'x');
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  const int code = rig.Run(
      [&](ScriptedStream& s, int) {
        s.Attach(kEpoch);
        s.Send(CommandId(1), kEpoch, PrefetchAdapter{Sha256Of(content)});
        for (uint64_t id = 2; id < 6; ++id) {
          s.Send(CommandId(id), kEpoch, StepPlan{});
          EXPECT_EQ(s.ReadCompletion().id.value, id);
        }
        go.set_value();
        const Completion c = s.ReadCompletion();
        EXPECT_EQ(c.id.value, 1u);
        EXPECT_TRUE(c.outcome.ok()) << c.outcome;
        EXPECT_EQ(ReadFile(rig.Disk().PathOf(Sha256Of(content))), content);
        s.Send(CommandId(7), kEpoch, DropAdapter{Sha256Of(content), kAllTiers});
        EXPECT_TRUE(s.ReadCompletion().outcome.ok());
        EXPECT_FALSE(std::filesystem::exists(rig.Disk().PathOf(Sha256Of(content))));
        s.Leave();
        s.AtEnd();
        return grpc::Status::OK;
      },
      [&](FakeCoordinator& coordinator) {
        coordinator.blobs[Sha256Of(content)] = content;
        coordinator.before_fetch = [gone](const Digest&) { gone.wait(); };
      });
  EXPECT_EQ(code, 0);
}

// FAULTS D8: the node's copy is shared, and goes when every rank has read it, however late.
TEST(Prefetch, D8ALateRankStillFindsTheSharedCopy) {
  LinkRig rig;
  const std::string content(5000, 'x');
  const std::filesystem::path path = rig.Disk().PathOf(Sha256Of(content));
  bool found = false;
  // The last rank ends later than the others, and cannot say so. A lone one has nobody to wait for.
  const bool alone = rig.bus.tp_size() == 1;
  const std::filesystem::path go = rig.cache / "go";
  if (rig.last() && !alone) rig.executor.held = [&] { return !std::filesystem::exists(go); };
  rig.executor.before = [&](const Command& command) {
    if (!std::holds_alternative<LoadAdapter>(command.kind)) return;
    // The last rank has other work first; the others have long gone on to what follows.
    if (rig.last()) Sha256Of(std::string(size_t{32} << 20, 'y'));
    found = ReadFile(path) == content;
  };
  const int code = rig.Run(
      [&](ScriptedStream& s, int) {
        s.Attach(kEpoch);
        s.Send(CommandId(1), kEpoch, PrefetchAdapter{Sha256Of(content)});
        EXPECT_TRUE(s.ReadCompletion().outcome.ok());
        s.Send(CommandId(2), kEpoch, LoadAdapter{Sha256Of(content), 1, {}, {PageId(3)}});
        if (!alone) {
          s.Send(CommandId(3), kEpoch, DropAdapter{Sha256Of(content), kAllTiers});
          const Completion early = s.ReadCompletion();
          EXPECT_EQ(early.id.value, 3u);
          EXPECT_EQ(early.outcome.code(), absl::StatusCode::kFailedPrecondition);
          std::ofstream(go) << "go";
        }
        const Completion loaded = s.ReadCompletion();
        EXPECT_EQ(loaded.id.value, 2u);
        EXPECT_TRUE(loaded.outcome.ok());
        s.Send(CommandId(4), kEpoch, DropAdapter{Sha256Of(content), kAllTiers});
        const Completion dropped = s.ReadCompletion();
        EXPECT_TRUE(dropped.outcome.ok());
        EXPECT_EQ(dropped.freed.disk, content.size());
        EXPECT_FALSE(std::filesystem::exists(path));
        s.Leave();
        s.AtEnd();
        return grpc::Status::OK;
      },
      [&](FakeCoordinator& coordinator) { coordinator.blobs[Sha256Of(content)] = content; });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(found);
}

// And the node's log says which, and why.
TEST(Prefetch, FailsByName) {
  LinkRig rig;
  InitLogging("test", LogLevel::kWarning);  // to stderr
  testing::internal::CaptureStderr();
  const int code = rig.Run(
      [&](ScriptedStream& s, int) {
        s.Attach(kEpoch);
        s.Send(CommandId(1), kEpoch, PrefetchAdapter{Sha256Of("flipped")});
        const Completion flipped = s.ReadCompletion();
        EXPECT_EQ(GetErrorDetail(flipped.outcome)->reason, Reason::kDigestMismatch);
        s.Send(CommandId(2), kEpoch, PrefetchAdapter{Sha256Of("absent")});
        EXPECT_EQ(s.ReadCompletion().outcome.code(), absl::StatusCode::kNotFound);
        // No half files either.
        for (const auto& entry : std::filesystem::directory_iterator(rig.cache)) {
          EXPECT_EQ(entry.path().filename(), ".lock");
        }
        s.Leave();
        s.AtEnd();
        return grpc::Status::OK;
      },
      [](FakeCoordinator& c) { c.blobs[Sha256Of("flipped")] = "flopped"; });
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 0);
  if (!rig.first()) return;  // the node's leader fetches
  for (const char* content : {"flipped", "absent"}) {
    const std::string line =
        absl::StrCat("adapter ", Sha256Of(content).Short(), " was not fetched: ");
    EXPECT_NE(log.find(line), std::string::npos) << log;
  }
}

// To the host: first the node's content, then every rank's image, and only then it completes.
TEST(Prefetch, ToTheHostCompletesWhenEveryRankHasItsImage) {
  LinkRig rig;
  const std::string content(3000, 'x');
  rig.executor.looks = rig.last() && !rig.first() ? 3 : 0;
  const int code = rig.Run(
      [&](ScriptedStream& s, int) {
        EXPECT_TRUE(s.Attach(kEpoch).cached.empty());
        s.Send(CommandId(1), kEpoch, PrefetchAdapter{Sha256Of(content), 7, {}, /*to_host=*/true});
        const Completion c = s.ReadCompletion();
        EXPECT_TRUE(c.outcome.ok()) << c.outcome;
        EXPECT_EQ(c.source, FetchSource::kCoordinator);
        EXPECT_EQ(c.bytes, content.size());
        const CachedAdapter on_disk{Sha256Of(content), Tier::kDisk, 3000};
        EXPECT_THAT(c.tier_changes, testing::ElementsAre(TierChange{on_disk, true}));
        s.Send(CommandId(2), kEpoch, PrefetchAdapter{Sha256Of(content), 7, {}, true});
        EXPECT_EQ(s.ReadCompletion().source, FetchSource::kDisk);
        s.Order({1, 2});
        EXPECT_THAT(s.ReadReport().cached, testing::ElementsAre(on_disk));
        s.Leave();
        s.AtEnd();
        return grpc::Status::OK;
      },
      [&](FakeCoordinator& coordinator) { coordinator.blobs[Sha256Of(content)] = content; });
  EXPECT_EQ(code, 0);
  EXPECT_THAT(rig.executor.log, testing::ElementsAre("attach 1.1 seqs=64", "stage 1", "stage 2",
                                                     "attach 1.2 seqs=64"));
}

// The host tier of a group is what all its ranks hold.
TEST(Prefetch, ReportsWhatEveryRankHolds) {
  LinkRig rig;
  const auto change = [](const char* name, bool present) {
    return TierChange{{Sha256Of(name), Tier::kHost, 10}, present};
  };
  rig.executor.was_in_host = true;
  rig.executor.host_tier = {change("all", true)};
  if (rig.last()) rig.executor.host_tier.push_back(change("one", true));
  rig.executor.host_changes = {change("forgotten at attach", true)};
  rig.executor.before = [&](const Command& command) {
    if (command.id.value != 1) return;
    rig.executor.host_changes = {change("new", true)};
    if (rig.last()) rig.executor.host_changes.push_back(change("all", false));
  };
  const uint64_t ranks = rig.bus.tp_size();
  const int code = rig.Run(
      [&](ScriptedStream& s, int) {
        const auto cached = s.Attach(kEpoch).cached;
        EXPECT_EQ(cached.size(), ranks == 1 ? 2u : 1u);
        s.Send(CommandId(1), kEpoch, PrefetchAdapter{Sha256Of("x"), 7, {}, true});
        const Completion c = s.ReadCompletion();
        EXPECT_EQ(c.source, FetchSource::kHost);
        EXPECT_THAT(c.tier_changes,
                    testing::UnorderedElementsAre(
                        TierChange{{Sha256Of("x"), Tier::kDisk, 1}, true},
                        TierChange{{Sha256Of("new"), Tier::kHost, 10 * ranks}, true},
                        TierChange{{Sha256Of("all"), Tier::kHost, 10 * ranks}, false}));
        s.Leave();
        s.AtEnd();
        return grpc::Status::OK;
      },
      [&](FakeCoordinator& coordinator) { coordinator.blobs[Sha256Of("x")] = "x"; });
  EXPECT_EQ(code, 0);
}

// A step that is to follow a load which failed on one rank fails on all, and none begins it.
TEST(Prefetch, AnEagerStepWhoseLoadFailedOnOneRankRunsOnNone) {
  LinkRig rig;
  if (rig.last()) rig.executor.eager_outcome = absl::UnavailableError("the disk is gone");
  const int code = rig.Run([&](ScriptedStream& s, int) {
    s.Attach(kEpoch);
    StepPlan eager;
    eager.eager = true;
    s.Send(CommandId(1), kEpoch, std::move(eager));
    EXPECT_EQ(s.ReadCompletion().outcome.code(), absl::StatusCode::kUnavailable);
    s.Send(CommandId(2), kEpoch, StepPlan{});
    EXPECT_TRUE(s.ReadCompletion().outcome.ok());
    s.Leave();
    s.AtEnd();
    return grpc::Status::OK;
  });
  EXPECT_EQ(code, 0);
  EXPECT_THAT(rig.executor.log, testing::ElementsAre("attach 1.1 seqs=64", "step 2 rows=0"));
}

// Up to Prefetcher::kMostFetches.
TEST(Prefetch, SlowFetchesHoldUpNoOther) {
  LinkRig rig;
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  const int code = rig.Run(
      [&](ScriptedStream& s, int) {
        s.Attach(kEpoch);
        for (uint64_t i = 1; i <= 12; ++i) {
          s.Send(CommandId(i), kEpoch, PrefetchAdapter{Sha256Of(std::to_string(i))});
        }
        s.Send(CommandId(13), kEpoch, PrefetchAdapter{Sha256Of("quick")});
        EXPECT_EQ(s.ReadCompletion().id.value, 13u);
        go.set_value();
        for (int i = 0; i < 12; ++i) EXPECT_FALSE(s.ReadCompletion().outcome.ok());
        s.Leave();
        s.AtEnd();
        return grpc::Status::OK;
      },
      [&](FakeCoordinator& c) {
        c.blobs[Sha256Of("quick")] = "quick";
        c.before_fetch = [gone](const Digest& digest) {
          if (digest != Sha256Of("quick")) gone.wait();
        };
      });
  EXPECT_EQ(code, 0);
}

// The group leaves while a fetch hangs: it is cancelled.
TEST(Prefetch, LeavingDoesNotWait) {
  LinkRig rig;
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  const int code = rig.Run(
      [&](ScriptedStream& s, int) {
        s.Attach(kEpoch);
        s.Send(CommandId(1), kEpoch, PrefetchAdapter{Sha256Of("slow")});
        s.Leave();
        s.AtEnd();
        go.set_value();
        return grpc::Status::OK;
      },
      [&](FakeCoordinator& c) { c.before_fetch = [gone](const Digest&) { gone.wait(); }; });
  EXPECT_EQ(code, 0);
}

// A pid that was given and is gone.
pid_t GonePid() {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
  return pid;
}

// A group that starts removes what a crash left half written, and nothing else: not what another
// process writes, whose pid, of another container, means nobody or somebody else here.
TEST(Prefetch, TemporariesOfTheGoneAreSweptAtStart) {
  LinkRig rig;
  const std::string hex = Sha256Of("weights").Hex();
  const auto temporary = [&](pid_t pid) { return "." + hex + "." + std::to_string(pid) + ".1"; };
  const std::vector<std::string> swept = {temporary(GonePid()), temporary(getpid()),
                                          temporary(getppid())};
  const std::string held = temporary(GonePid());
  std::unique_ptr<BlobFile> writing;
  const std::vector<std::string> kept = {held, hex, ".keep",
                                         ".x." + std::to_string(GonePid()) + ".1"};
  const int code = rig.Run(
      [&](ScriptedStream& s, int) {
        s.Attach(kEpoch);
        for (const std::string& name : swept) {
          EXPECT_FALSE(std::filesystem::exists(rig.cache / name)) << name;
        }
        for (const std::string& name : kept) {
          EXPECT_TRUE(std::filesystem::exists(rig.cache / name)) << name;
        }
        s.Leave();
        s.AtEnd();
        return grpc::Status::OK;
      },
      [&](FakeCoordinator&) {
        std::filesystem::create_directories(rig.cache);
        for (const std::string& name : swept) std::ofstream(rig.cache / name) << "weig";
        for (const std::string& name : kept) std::ofstream(rig.cache / name) << "weights";
        writing = *BlobFile::Create(rig.cache / held, 7);
      });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace rootstock
