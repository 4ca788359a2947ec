// mpirun lora-worker under a scripted coordinator: the conformance cases over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/lora/peft_loader.h"
#include "tests/worker/process.h"
#include "worker/link/fake_coordinator.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

const fs::path kCases = ROOTSTOCK_SOURCE_DIR "/tests/cases";
const std::string kModel = "tiny-llama";
constexpr uint32_t kNumPages = 4000;
constexpr uint32_t kPageTokens = 4;
constexpr GroupLimits kLimits{200, 64, 512, 20};

// worker_group_gpus_test is built with ROOTSTOCK_TEST_GPUS: a GPU a rank.
#ifdef ROOTSTOCK_TEST_GPUS
constexpr bool kGpus = true;
#else
constexpr bool kGpus = false;
#endif

struct Probe {
  std::string adapter;  // empty: the base
  std::vector<int32_t> prompt, greedy;
};

nlohmann::json ReadExpectation(const fs::path& dir) {
  std::ifstream in(dir / "expect.json");
  return nlohmann::json::parse(in);
}

// What the coordinator would know: contents by digest, and requests.
class Cases {
 public:
  Cases() {
    spec = *LoadModelSpec(kCases / "models" / kModel);
    Add(ReadExpectation(kCases / "models" / kModel), "");
    for (const auto& entry : fs::directory_iterator(kCases / "adapters")) {
      const nlohmann::json expect = ReadExpectation(entry.path());
      if (expect["model"] != kModel || expect["verdict"] != "accept") continue;
      const std::string name = entry.path().filename();
      blobs[name] = EncodeCanonical(*LoadPeftAdapter(entry.path(), spec, {}), spec);
      Add(expect, name);
    }
  }
  LoadAdapter LoadOf(const std::string& name, int tp_size, uint32_t page_bytes, uint32_t& next_page,
                     LoraSharding sharding = LoraSharding::kReplicated) const {
    const std::string& blob = blobs.at(name);
    const auto content = CanonicalAdapter::Parse(
        std::span(reinterpret_cast<const uint8_t*>(blob.data()), blob.size()), spec);
    const auto layout = AdapterLayout::Create(spec, content->spec(), *MakeTpPlan(spec, tp_size),
                                              sharding, DType::kF32, page_bytes);
    LoadAdapter load{Sha256Of(blob), layout->id(), sharding, {}};
    for (uint32_t i = 0; i < layout->num_pages(); ++i) load.pages.push_back(PageId(next_page++));
    return load;
  }

  ModelSpec spec;
  std::map<std::string, std::string> blobs;
  std::vector<Probe> probes;

 private:
  void Add(const nlohmann::json& expect, const std::string& adapter) {
    for (const nlohmann::json& p : expect["probes"]) {
      probes.push_back({adapter, p["prompt"], p["greedy"]});
    }
  }
};

// The coordinator's side of one attach.
class Driver {
 public:
  Driver(ScriptedStream& stream, const Cases& cases, int tp_size, Epoch epoch)
      : stream_(stream), cases_(cases), tp_size_(tp_size), epoch_(epoch) {
    report = stream_.Attach(epoch_, kLimits);
    EXPECT_EQ(report.geometry.num_pages, kNumPages);
  }

  Completion Do(decltype(Command::kind) kind) {
    Send(std::move(kind));
    return stream_.ReadCompletion();
  }
  void Send(decltype(Command::kind) kind) {
    stream_.Send(CommandId(++commands_), epoch_, std::move(kind));
  }
  // `ways` in turn.
  void LoadAll(const std::vector<LoraSharding>& ways = {LoraSharding::kReplicated}) {
    size_t turn = 0;
    for (const auto& [name, blob] : cases_.blobs) {
      const LoadAdapter load = cases_.LoadOf(name, tp_size_, report.geometry.page_bytes, next_page,
                                             ways[turn++ % ways.size()]);
      EXPECT_TRUE(Do(PrefetchAdapter{load.digest}).outcome.ok());
      const Completion loaded = Do(load);
      EXPECT_TRUE(loaded.outcome.ok()) << loaded.outcome;
    }
  }
  // All probes in one batch, prompts in two chunks, every plan one step ahead of its result.
  void RunProbes() {
    std::vector<std::vector<int32_t>> got(cases_.probes.size());
    size_t longest = 0;
    for (const Probe& p : cases_.probes) longest = std::max(longest, p.greedy.size());
    Send(Prompts(true));
    Send(Prompts(false));
    const Completion first = stream_.ReadCompletion();
    ASSERT_TRUE(first.outcome.ok()) << first.outcome;
    for (size_t step = 1; step <= longest; ++step) {
      if (step < longest) Send(Decode(static_cast<uint32_t>(step - 1)));
      const Completion c = stream_.ReadCompletion();
      ASSERT_TRUE(c.outcome.ok()) << c.outcome;
      ASSERT_EQ(c.step.rows.size(), got.size());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(c.step.rows[i].slot.value, i);
        got[i].push_back(c.step.rows[i].tokens.at(0));
      }
    }
    for (size_t i = 0; i < got.size(); ++i) {
      got[i].resize(cases_.probes[i].greedy.size());
      EXPECT_EQ(got[i], cases_.probes[i].greedy) << cases_.probes[i].adapter;
    }
    ReleaseSlots release;
    for (uint32_t i = 0; i < got.size(); ++i) release.slots.push_back(SequenceSlot(i));
    EXPECT_TRUE(Do(release).outcome.ok());
  }

  // Steps of all probes, one ahead of the result, over and over until the group is gone; calls
  // `busy` once it is under way.
  void RunUntilLost(const std::function<void()>& busy) {
    const uint32_t first_page = next_page;
    for (int round = 0;; ++round) {
      next_page = first_page;
      Send(Prompts(true));
      Send(Prompts(false));
      for (uint32_t step = 0; step < 50; ++step) {
        if (stream_.AtEnd()) return;
        Send(Decode(step));
        if (round == 0 && step == 20) busy();
      }
      ReleaseSlots release;
      for (uint32_t i = 0; i < cases_.probes.size(); ++i) release.slots.push_back(SequenceSlot(i));
      for (int left = 0; left < 2; ++left) {
        if (stream_.AtEnd()) return;
      }
      Send(release);
      if (stream_.AtEnd()) return;
    }
  }

  AttachReport report;
  uint32_t next_page = 1;

 private:
  StepPlan Prompts(bool first) {
    StepPlan plan;
    for (uint32_t i = 0; i < cases_.probes.size(); ++i) {
      const Probe& probe = cases_.probes[i];
      const uint32_t length = static_cast<uint32_t>(probe.prompt.size()), cut = length / 2;
      PlanRow row{SequenceSlot(i), first ? cut : length - cut, first ? 0 : cut};
      row.tokens.assign(probe.prompt.begin() + row.position,
                        probe.prompt.begin() + row.position + row.query_len);
      row.output = first ? RowOutput::kNone : RowOutput::kToken;
      if (first) {
        plan.new_sequences.push_back(NewSequenceOf(i));
        const uint32_t total = length + static_cast<uint32_t>(probe.greedy.size()) + 60;
        for (uint32_t p = 0; p * kPageTokens < std::min(total, kLimits.max_model_len); ++p) {
          row.pages.push_back(PageId(next_page++));
        }
      }
      plan.rows.push_back(std::move(row));
    }
    return plan;
  }
  NewSequence NewSequenceOf(uint32_t i) const {
    const Probe& probe = cases_.probes[i];
    NewSequence s;
    s.slot = SequenceSlot(i);
    s.num_prompt_tokens = s.num_tokens = static_cast<uint32_t>(probe.prompt.size());
    s.sampling.temperature = 0;
    if (!probe.adapter.empty()) {
      s.spans = {{0, 0, {{Sha256Of(cases_.blobs.at(probe.adapter)), 1.0f}}}};
    }
    return s;
  }
  StepPlan Decode(uint32_t output) const {
    StepPlan plan;
    for (uint32_t i = 0; i < cases_.probes.size(); ++i) {
      plan.rows.push_back(
          {SequenceSlot(i), 1, static_cast<uint32_t>(cases_.probes[i].prompt.size()) + output});
    }
    return plan;
  }

  ScriptedStream& stream_;
  const Cases& cases_;
  const int tp_size_;
  const Epoch epoch_;
  uint64_t commands_ = 0;
};

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
                                                              ROOTSTOCK_BINARY_DIR
                                                              "/bin/lora-worker",
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
    for (const pid_t rank : ranks) {
      while (IsRunning(rank)) {
        ASSERT_LT(std::chrono::steady_clock::now() - start, within) << job.Output();
        std::this_thread::sleep_for(5ms);
      }
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
      const auto start = std::chrono::steady_clock::now();
      ASSERT_NO_FATAL_FAILURE(AwaitEnd(ranks, within, *job));
      RecordProperty("down_ms", static_cast<int>((std::chrono::steady_clock::now() - start) / 1ms));
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

INSTANTIATE_TEST_SUITE_P(TpSize, WorkerGroupTest, testing::Values(1, 2));
INSTANTIATE_TEST_SUITE_P(TpSize, LostRankTest, testing::Values(2));

}  // namespace
}  // namespace rootstock
