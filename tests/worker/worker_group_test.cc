// mpirun lora-worker under a scripted coordinator: the conformance cases over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <future>
#include <regex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/worker/group_driver.h"
#include "tests/worker/process.h"

namespace rootstock {
namespace {

using namespace std::chrono_literals;

const std::string kWorker =
    FolderOf("ROOTSTOCK_BINARY_DIR", ROOTSTOCK_BINARY_DIR) / "bin/lora-worker";

// worker_group_gpus_test is built with ROOTSTOCK_TEST_GPUS: a GPU a rank.
#ifdef ROOTSTOCK_TEST_GPUS
constexpr bool kGpus = true;
#else
constexpr bool kGpus = false;
#endif

// Of this host, by their device files: a process that asks CUDA would hold them open.
int NumGpus() {
  const std::regex gpu("nvidia[0-9]+");
  const fs::directory_iterator files("/dev");
  return static_cast<int>(std::count_if(begin(files), end(files), [&](const auto& file) {
    return std::regex_match(file.path().filename().string(), gpu);
  }));
}

// From `least` to 2, on GPUs to as many as there are.
std::vector<int> TpSizes(int least) {
  std::vector<int> sizes;
  for (const int size : {1, 2, 4}) {
    if (size >= least && (size <= 2 || (kGpus && size <= NumGpus()))) sizes.push_back(size);
  }
  return sizes;
}

class WorkerGroupTest : public testing::TestWithParam<int> {
 protected:
  WorkerGroupTest() : cache_(fs::temp_directory_path() / absl::StrCat("worker_group.", getpid())) {}
  ~WorkerGroupTest() override { fs::remove_all(cache_); }

  std::unique_ptr<Process> Launch(int port) const {
    return std::make_unique<Process>(std::vector<std::string>{"mpirun",
                                                              "-np",
                                                              std::to_string(GetParam()),
                                                              "--oversubscribe",
                                                              "--bind-to",
                                                              "none",
                                                              kWorker,
                                                              "--coordinator",
                                                              absl::StrCat("127.0.0.1:", port),
                                                              "--model",
                                                              kCases / "models" / kModel,
                                                              "--metrics-port",
                                                              "0",
                                                              "--num-pages",
                                                              std::to_string(kNumPages),
                                                              "--page-tokens",
                                                              std::to_string(kPageTokens),
                                                              "--cache-dir",
                                                              cache_,
                                                              "--dtype",
                                                              "f32",
                                                              "--device",
                                                              kGpus ? "cuda" : "cpu"});
  }
  static void AwaitEnd(const std::vector<pid_t>& ranks, std::chrono::milliseconds within,
                       const Process& job) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<pid_t> left = ranks;
    while (!left.empty()) {
      const auto waited = std::chrono::steady_clock::now() - start;
      std::erase_if(left, [&](pid_t rank) {
        if (IsRunning(rank)) return false;
        const auto tp_rank = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
        RecordProperty(absl::StrCat("rank", tp_rank, "_down_ms"), static_cast<int>(waited / 1ms));
        return true;
      });
      ASSERT_LT(waited, within) << job.Output();
      std::this_thread::sleep_for(5ms);
    }
  }
  // `signal` strikes a rank that has steps to run; a new group serves.
  void LoseRank(int signal, std::chrono::milliseconds within) {
    std::promise<void> busy;
    const auto coordinator = Coordinator([&](ScriptedStream& s, int stream) {
      Driver driver(s, cases_, GetParam(), {1, static_cast<uint64_t>(stream + 1)});
      driver.LoadAll();
      if (stream == 0) {
        driver.RunUntilLost([&] { busy.set_value(); });
        return grpc::Status::OK;
      }
      driver.RunProbes();
      s.Leave();
      s.AtEnd();
      return grpc::Status::OK;
    });
    {
      const auto job = Launch(coordinator->port());
      ASSERT_EQ(busy.get_future().wait_for(60s), std::future_status::ready) << job->Output();
      const std::vector<pid_t> ranks = job->Children();
      ASSERT_EQ(ranks.size(), static_cast<size_t>(GetParam()));
      kill(ranks.back(), signal);
      ASSERT_NO_FATAL_FAILURE(AwaitEnd(ranks, within, *job));
      const auto code = job->Wait(5000ms);
      ASSERT_TRUE(code.has_value()) << job->Output();
      EXPECT_NE(*code, 0);
    }
    const auto next = Launch(coordinator->port());
    EXPECT_EQ(next->Wait(60000ms), 0) << next->Output();
  }
  std::unique_ptr<FakeCoordinator> Coordinator(FakeCoordinator::Script script, int port = 0) const {
    auto out = std::make_unique<FakeCoordinator>(std::move(script), port);
    for (const auto& [name, blob] : cases_.blobs) out->blobs[Sha256Of(blob)] = blob;
    return out;
  }

  const fs::path cache_;
  const Cases cases_;
};

TEST_P(WorkerGroupTest, CasesInOneBatchBeforeAndAfterEvictAndReload) {
  const auto coordinator = Coordinator([&](ScriptedStream& s, int) {
    Driver driver(s, cases_, GetParam(), {1, 1});
    driver.LoadAll();
    driver.RunProbes();
    for (const auto& [name, blob] : cases_.blobs) {
      EXPECT_TRUE(driver.Do(DropAdapter{Sha256Of(blob), Tier::kDevice}).outcome.ok());
    }
    driver.next_page = 2000;
    driver.LoadAll();
    driver.RunProbes();
    s.Leave();
    EXPECT_TRUE(s.AtEnd());
    return grpc::Status::OK;
  });
  const auto job = Launch(coordinator->port());
  EXPECT_EQ(job->Wait(60000ms), 0) << job->Output();
}

// lora_ranks from 1 to 16, odd ones too; an adapter comes back in another way than it went.
TEST_P(WorkerGroupTest, CasesFullyShardedAndBesideReplicatedOnes) {
  constexpr LoraSharding kWhole = LoraSharding::kReplicated, kParts = LoraSharding::kFullySharded;
  const std::vector<LoraSharding> turns[] = {{kParts}, {kParts, kWhole}, {kWhole, kParts, kParts}};
  const auto coordinator = Coordinator([&](ScriptedStream& s, int) {
    Driver driver(s, cases_, GetParam(), {1, 1});
    for (const auto& ways : turns) {
      driver.LoadAll(ways);
      driver.RunProbes();
      for (const auto& [name, blob] : cases_.blobs) {
        EXPECT_TRUE(driver.Do(DropAdapter{Sha256Of(blob), Tier::kDevice}).outcome.ok());
      }
    }
    s.Leave();
    EXPECT_TRUE(s.AtEnd());
    return grpc::Status::OK;
  });
  const auto job = Launch(coordinator->port());
  EXPECT_EQ(job->Wait(60000ms), 0) << job->Output();
}

// Each rank's steps follow its own copies, and wait for the others' in their collectives.
TEST_P(WorkerGroupTest, EagerStepsFollowLoads) {
  const auto coordinator = Coordinator([&](ScriptedStream& s, int) {
    Driver driver(s, cases_, GetParam(), {1, 1});
    EXPECT_TRUE(driver.report.loads_by_layer);
    for (const auto way : {LoraSharding::kReplicated, LoraSharding::kFullySharded}) {
      driver.next_page = 1;
      driver.BeginLoads(way);
      driver.RunProbes(/*eager=*/true);
      driver.RunProbes();
      for (const auto& [name, blob] : cases_.blobs) {
        EXPECT_TRUE(driver.Do(DropAdapter{Sha256Of(blob), Tier::kDevice}).outcome.ok());
      }
    }
    s.Leave();
    EXPECT_TRUE(s.AtEnd());
    return grpc::Status::OK;
  });
  const auto job = Launch(coordinator->port());
  EXPECT_EQ(job->Wait(60000ms), 0) << job->Output();
}

// The coordinator restarts: adapters are in place, weights are not read again.
TEST_P(WorkerGroupTest, AdaptersOutliveTheCoordinator) {
  std::promise<void> loaded;
  auto coordinator = Coordinator([&](ScriptedStream& s, int) {
    Driver driver(s, cases_, GetParam(), {1, 1});
    driver.LoadAll();
    loaded.set_value();
    s.AtEnd();
    return grpc::Status::OK;
  });
  const int port = coordinator->port();
  const auto job = Launch(port);
  ASSERT_EQ(loaded.get_future().wait_for(60s), std::future_status::ready) << job->Output();
  coordinator.reset();
  coordinator = Coordinator(
      [&](ScriptedStream& s, int) {
        Driver driver(s, cases_, GetParam(), {2, 1});
        EXPECT_EQ(driver.report.adapters.size(), cases_.blobs.size());
        for (const ResidentAdapter& a : driver.report.adapters) {
          for (const PageId page : a.pages) {
            driver.next_page = std::max(driver.next_page, page.value + 1);
          }
        }
        driver.RunProbes();
        s.Leave();
        s.AtEnd();
        return grpc::Status::OK;
      },
      port);
  EXPECT_EQ(job->Wait(60000ms), 0) << job->Output();
  size_t reads = 0;
  for (size_t at = 0; (at = job->Output().find("ready:", at)) != std::string::npos; ++at) ++reads;
  EXPECT_EQ(reads, static_cast<size_t>(GetParam()));
}

TEST_P(WorkerGroupTest, RefusedLoadsLeaveTheGroupAlive) {
  const auto coordinator = Coordinator([&](ScriptedStream& s, int) {
    Driver driver(s, cases_, GetParam(), {1, 1});
    const std::string& name = cases_.blobs.begin()->first;
    const LoadAdapter good =
        cases_.LoadOf(name, GetParam(), driver.report.geometry.page_bytes, driver.next_page);
    EXPECT_EQ(driver.Do(good).outcome.code(), absl::StatusCode::kNotFound);  // not prefetched
    EXPECT_TRUE(driver.Do(PrefetchAdapter{good.digest}).outcome.ok());
    LoadAdapter other = good;
    other.layout_id ^= 1;
    EXPECT_EQ(GetErrorDetail(driver.Do(other).outcome)->field, "load.layout_id");
    other = good;
    other.pages.pop_back();
    EXPECT_FALSE(driver.Do(other).outcome.ok());
    EXPECT_TRUE(driver.Do(good).outcome.ok());
    s.Leave();
    s.AtEnd();
    return grpc::Status::OK;
  });
  const auto job = Launch(coordinator->port());
  EXPECT_EQ(job->Wait(60000ms), 0) << job->Output();
}

TEST_P(WorkerGroupTest, SignalToMpirunDrains) {
  std::promise<void> attached;
  const auto coordinator = Coordinator([&](ScriptedStream& s, int) {
    Driver driver(s, cases_, GetParam(), {1, 1});
    attached.set_value();
    EXPECT_TRUE(s.ReadLeaving());
    s.Leave();
    s.AtEnd();
    return grpc::Status::OK;
  });
  const auto job = Launch(coordinator->port());
  ASSERT_EQ(attached.get_future().wait_for(60s), std::future_status::ready) << job->Output();
  job->Signal(SIGUSR1);
  EXPECT_EQ(job->Wait(20000ms), 0) << job->Output();
}

class LostRankTest : public WorkerGroupTest {};

TEST_P(LostRankTest, AKilledRankTakesItsGroupDownAndTheNextOneServes) { LoseRank(SIGKILL, 1000ms); }

#ifdef ROOTSTOCK_TEST_GPUS
constexpr auto kStoppedFor = 5000ms;
#else
constexpr auto kStoppedFor = 20000ms;  // 3 s on a machine that does nothing else
#endif
TEST_P(LostRankTest, AStoppedRankTakesItsGroupDownAndTheNextOneServes) {
  LoseRank(SIGSTOP, kStoppedFor);
}

// No step runs that could be late: the other ranks see that it stands still.
TEST_P(LostRankTest, AnIdleGroupWithAStoppedRankEnds) {
  for (const bool leader : {true, false}) {
    std::promise<void> attached;
    const auto coordinator = Coordinator([&](ScriptedStream& s, int) {
      Driver driver(s, cases_, GetParam(), {1, 1});
      attached.set_value();
      s.AtEnd();
      return grpc::Status::OK;
    });
    const auto job = Launch(coordinator->port());
    ASSERT_EQ(attached.get_future().wait_for(60s), std::future_status::ready) << job->Output();
    const std::vector<pid_t> ranks = job->Children();
    ASSERT_EQ(ranks.size(), static_cast<size_t>(GetParam()));
    kill(leader ? ranks.front() : ranks.back(), SIGSTOP);
    AwaitEnd(ranks, kStoppedFor, *job);
  }
}

INSTANTIATE_TEST_SUITE_P(TpSize, WorkerGroupTest, testing::ValuesIn(TpSizes(1)));
INSTANTIATE_TEST_SUITE_P(TpSize, LostRankTest, testing::ValuesIn(TpSizes(2)));

}  // namespace
}  // namespace rootstock
