// lora-worker as processes under mpirun: how it starts, what it refuses, how it ends.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <thread>

#include "tests/worker/process.h"

namespace rootstock {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

const std::string kWorker = ROOTSTOCK_BINARY_DIR "/bin/lora-worker";
const std::string kModels = ROOTSTOCK_SOURCE_DIR "/tests/cases/models/";
constexpr auto kSoon = 20000ms;

using Words = std::vector<std::string>;

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Words Ranks(int n) {
  return {"mpirun", "-np", std::to_string(n), "--oversubscribe", "--bind-to", "none"};
}

// Nobody listens on port 1. A flag may be given once: `more` replaces defaults.
Words Worker(const std::string& model, const Words& more = {}) {
  std::map<std::string, std::string> flags = {{"--coordinator", "127.0.0.1:1"},
                                              {"--model", kModels + model},
                                              {"--metrics-port", "0"},
                                              {"--num-pages", "50"},
                                              {"--group", "g"}};
  for (size_t i = 0; i + 1 < more.size(); i += 2) flags[more[i]] = more[i + 1];
  Words out = {kWorker};
  for (const auto& [flag, value] : flags) out = out + Words{flag, value};
  return out;
}

TEST(WorkerStart, WaitsForTheCoordinatorAndLeavesOnSigusr1) {
  Process job(Ranks(2) + Worker("tiny-llama"));
  ASSERT_TRUE(job.Prints("waiting for the coordinator at 127.0.0.1:1", kSoon)) << job.Output();
  EXPECT_FALSE(job.Wait(300ms).has_value());
  job.Signal(SIGUSR1);
  EXPECT_EQ(job.Wait(kSoon), 0) << job.Output();
}

TEST(WorkerStart, AnotherModelOnTheSecondRankIsRefusedByName) {
  Process job(Words{"mpirun", "--oversubscribe", "--bind-to", "none", "-np", "1"} +
              Worker("tiny-llama") + Words{":", "-np", "1"} + Worker("tiny-mistral"));
  const auto code = job.Wait(kSoon);
  ASSERT_TRUE(code.has_value());
  EXPECT_NE(*code, 0);
  EXPECT_THAT(job.Output(), HasSubstr("tiny-mistral"));
  EXPECT_THAT(job.Output(), HasSubstr("of tp_rank 1 differs from"));
  EXPECT_THAT(job.Output(), HasSubstr("tiny-llama"));
}

struct BadStart {
  std::string name;
  int ranks;
  Words extra;
  std::string mentions;
};

void PrintTo(const BadStart& bad, std::ostream* out) { *out << bad.name; }

class BadStartTest : public testing::TestWithParam<BadStart> {};

TEST_P(BadStartTest, EndsWithAClearError) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // as on a host without a GPU
  Process job(Ranks(GetParam().ranks) + Worker("tiny-llama", GetParam().extra));
  const auto code = job.Wait(kSoon);
  ASSERT_TRUE(code.has_value()) << job.Output();
  EXPECT_NE(*code, 0);
  EXPECT_THAT(job.Output(), HasSubstr(GetParam().mentions));
}

INSTANTIATE_TEST_SUITE_P(
    Worker, BadStartTest,
    testing::Values(BadStart{"NoCuda", 1, {"--device", "cuda"}, "device=cuda"},
                    BadStart{"CudaRanks", 2, {"--device", "cuda"}, "device=cuda:"},
                    BadStart{"Ranks", 7, {}, "tp_size=7"},
                    BadStart{"NoModel", 2, {"--model", "/nowhere"}, "/nowhere"},
                    BadStart{"Store", 2, {"--object-store", "http://a"}, "object-store=http://a"},
                    BadStart{
                        "Coordinator", 1, {"--coordinator", "foo"}, "coordinator=foo: must be"},
                    BadStart{"CoordinatorPort",
                             1,
                             {"--coordinator", "127.0.0.1:99999"},
                             "coordinator=127.0.0.1:99999: must be HOST:PORT"},
                    BadStart{"CacheDir",
                             2,
                             {"--cache-dir", "/proc/xx"},
                             "cache-dir=/proc/xx/adapters: takes no files"},
                    BadStart{"Flag", 1, {"--device", "tpu"}, "tpu"}),
    [](const auto& info) { return info.param.name; });

#ifdef ROOTSTOCK_OLD_DRIVER_DIR
TEST(WorkerStart, AnOldDriverIsNamedBesideWhatTheBuildNeeds) {
  Process job(Words{"env", "LD_LIBRARY_PATH=" ROOTSTOCK_OLD_DRIVER_DIR} + Ranks(1) +
              Worker("tiny-llama", {"--device", "cuda"}));
  const auto code = job.Wait(kSoon);
  ASSERT_TRUE(code.has_value()) << job.Output();
  EXPECT_NE(*code, 0);
  EXPECT_THAT(job.Output(),
              HasSubstr("device=cuda:0: the driver is for CUDA 9.2, this build needs"));
}
#endif

TEST(WorkerStart, MetricsPortTaken) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const std::string port = std::to_string(ntohs(address.sin_port));
  Process job(Ranks(1) + Worker("tiny-llama", {"--metrics-port", port}));
  const auto code = job.Wait(kSoon);
  ASSERT_TRUE(code.has_value()) << job.Output();
  EXPECT_NE(*code, 0);
  EXPECT_THAT(job.Output(), HasSubstr(port));
  close(fd);
}

// KUBERNETES.md's table: the job is gone about a second after one of its ranks.
TEST(WorkerStart, KilledRankEndsTheJob) {
  Process job(Ranks(2) + Worker("tiny-llama"));
  ASSERT_TRUE(job.Prints("waiting for the coordinator", kSoon)) << job.Output();
  const std::vector<pid_t> ranks = job.Children();
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[1], SIGKILL);
  // The ranks end one another; mpirun takes longer to say so.
  const auto deadline = std::chrono::steady_clock::now() + 1s;
  while (IsRunning(ranks[0])) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "a rank outlives its group";
    std::this_thread::sleep_for(5ms);
  }
  const auto code = job.Wait(5000ms);
  ASSERT_TRUE(code.has_value());
  EXPECT_NE(*code, 0);
}

TEST(WorkerStart, RanksDieWithMpirun) {
  Process job(Ranks(2) + Worker("tiny-llama"));
  ASSERT_TRUE(job.Prints("waiting for the coordinator", kSoon)) << job.Output();
  const std::vector<pid_t> ranks = job.Children();
  ASSERT_EQ(ranks.size(), 2u);
  job.Signal(SIGKILL);
  ASSERT_TRUE(job.Wait(5000ms).has_value());
  const auto deadline = std::chrono::steady_clock::now() + 3s;
  while (IsRunning(ranks[0]) || IsRunning(ranks[1])) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "a rank outlives mpirun";
    std::this_thread::sleep_for(5ms);
  }
}

}  // namespace
}  // namespace rootstock
