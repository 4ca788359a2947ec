// Adapter content on its way to a node, beside the steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <sstream>

#include "common/base/status.h"
#include "worker/link/blob_cache.h"
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
        EXPECT_EQ(ReadFile(BlobCache(rig.cache).PathOf(Sha256Of(content))), content);
        s.Send(CommandId(7), kEpoch, DropAdapter{Sha256Of(content), kAllTiers});
        EXPECT_TRUE(s.ReadCompletion().outcome.ok());
        EXPECT_FALSE(std::filesystem::exists(BlobCache(rig.cache).PathOf(Sha256Of(content))));
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
  const std::filesystem::path path = BlobCache(rig.cache).PathOf(Sha256Of(content));
  bool found = false;
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
        s.Send(CommandId(3), kEpoch, DropAdapter{Sha256Of(content), kAllTiers});
        EXPECT_TRUE(s.ReadCompletion().outcome.ok());
        EXPECT_TRUE(s.ReadCompletion().outcome.ok());
        EXPECT_FALSE(std::filesystem::exists(path));
        s.Leave();
        s.AtEnd();
        return grpc::Status::OK;
      },
      [&](FakeCoordinator& coordinator) { coordinator.blobs[Sha256Of(content)] = content; });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(found);
}

TEST(Prefetch, FailsByName) {
  LinkRig rig;
  const int code = rig.Run(
      [&](ScriptedStream& s, int) {
        s.Attach(kEpoch);
        s.Send(CommandId(1), kEpoch, PrefetchAdapter{Sha256Of("flipped")});
        const Completion flipped = s.ReadCompletion();
        EXPECT_EQ(GetErrorDetail(flipped.outcome)->reason, Reason::kDigestMismatch);
        s.Send(CommandId(2), kEpoch, PrefetchAdapter{Sha256Of("absent")});
        EXPECT_EQ(s.ReadCompletion().outcome.code(), absl::StatusCode::kNotFound);
        EXPECT_TRUE(std::filesystem::is_empty(rig.cache));  // no half files either
        s.Leave();
        s.AtEnd();
        return grpc::Status::OK;
      },
      [](FakeCoordinator& c) { c.blobs[Sha256Of("flipped")] = "flopped"; });
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

class MemorySource : public BlobSource {
 public:
  absl::Status Fetch(const Digest&, const Sink& sink) override {
    ++fetches;
    return sink(content);
  }
  void Cancel() override {}
  std::string content;
  int fetches = 0;
};

TEST(BlobCache, FetchesOnceAndReplacesWhatIsSpoilt) {
  const std::filesystem::path dir =
      std::filesystem::path(testing::TempDir()) / ("blob_cache." + std::to_string(getpid()));
  const BlobCache cache(dir);
  MemorySource source;
  source.content = "weights";
  const Digest digest = Sha256Of("weights");
  EXPECT_TRUE(cache.Ensure(digest, source).ok());
  EXPECT_TRUE(cache.Ensure(digest, source).ok());
  EXPECT_EQ(source.fetches, 1);
  std::ofstream(cache.PathOf(digest)) << "weigh";
  EXPECT_TRUE(cache.Ensure(digest, source).ok());
  EXPECT_EQ(ReadFile(cache.PathOf(digest)), "weights");
  EXPECT_TRUE(cache.Remove(digest).ok());
  EXPECT_TRUE(cache.Remove(digest).ok());
  std::ofstream(dir.string() + "x") << "a file";
  const absl::Status status = BlobCache(dir.string() + "x/sub").Ensure(digest, source);
  EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kIoError);
  std::filesystem::remove_all(dir);
  std::filesystem::remove(dir.string() + "x");
}

// A pid that was given and is gone.
pid_t GonePid() {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
  return pid;
}

// A group that starts removes what a crash left half written, and nothing else.
TEST(BlobCache, TemporariesOfTheGoneAreSweptAtStart) {
  LinkRig rig;
  const std::string hex = Sha256Of("weights").Hex();
  const auto temporary = [&](pid_t pid) { return "." + hex + "." + std::to_string(pid) + ".1"; };
  const std::vector<std::string> swept = {temporary(GonePid()), temporary(getpid())};
  const std::vector<std::string> kept = {temporary(getppid()), hex, ".keep",
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
      });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace rootstock
