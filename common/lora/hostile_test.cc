// Hostile adapters: each artefact is refused with its exact reason, quickly and in little memory.
#include <gtest/gtest.h>
#include <time.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/lora/hostile_artefacts.h"
#include "common/lora/peft_loader.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// The most memory that has been resident since ForgetPeak.
long PeakKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    long kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes;
  }
  return -1;
}

void ForgetPeak() {
  std::ofstream peak("/proc/self/clear_refs");
  peak << 5;
  peak.close();
  ASSERT_TRUE(peak.good());
}

double ThreadMilliseconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

class HostileAdapter : public testing::TestWithParam<Hostile> {};

TEST_P(HostileAdapter, IsRefusedWithItsReasonQuicklyInLittleMemory) {
  const TestDir dir("hostile_test");
  Artefact artefact{dir};
  GetParam().break_it(artefact);
  if (artefact.write) dir.WriteAdapter(artefact.config, artefact.tensors);
  ForgetPeak();
  const long peak = PeakKilobytes();
  const double begin = ThreadMilliseconds();
  const auto adapter = LoadPeftAdapter(dir.path(), artefact.model, {});
  const double took = ThreadMilliseconds() - begin;
  ASSERT_FALSE(adapter.ok());
  const auto detail = GetErrorDetail(adapter.status());
  ASSERT_TRUE(detail.has_value()) << adapter.status();
  EXPECT_STREQ(ReasonName(detail->reason), ReasonName(GetParam().reason)) << adapter.status();
  EXPECT_LE(adapter.status().message().size(), 1000u);
  if (!kSanitized) {
    EXPECT_LE(took, 100.0);
    EXPECT_LE(PeakKilobytes() - peak, 64 << 10);
  }
}

std::string NameOf(const testing::TestParamInfo<Hostile>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Config, HostileAdapter, testing::ValuesIn(HostileConfigs()), NameOf);
INSTANTIATE_TEST_SUITE_P(Header, HostileAdapter, testing::ValuesIn(HostileHeaders()), NameOf);
INSTANTIATE_TEST_SUITE_P(Tensor, HostileAdapter, testing::ValuesIn(HostileTensors()), NameOf);
INSTANTIATE_TEST_SUITE_P(File, HostileAdapter, testing::ValuesIn(HostileFiles()), NameOf);
INSTANTIATE_TEST_SUITE_P(Link, HostileAdapter, testing::ValuesIn(HostileLinks()), NameOf);
INSTANTIATE_TEST_SUITE_P(Variant, HostileAdapter, testing::ValuesIn(HostileVariants()), NameOf);

// Or what one artefact takes is lost in what one before it took.
TEST(HostileAdapters, MemoryIsThatOfEachArtefact) {
  const auto rise = [](size_t bytes) {
    ForgetPeak();
    const long before = PeakKilobytes();
    const std::vector<char> taken(bytes, 'x');
    return PeakKilobytes() - before + (taken.back() == 'x' ? 0 : 1);
  };
  EXPECT_GT(rise(256 << 20), 200 << 10);
  EXPECT_LT(rise(1 << 20), 64 << 10);
  EXPECT_GT(rise(96 << 20), 64 << 10);
}

TEST(HostileAdapters, AreHundredsOfManyKinds) {
  size_t artefacts = 0;
  std::set<Reason> reasons;
  for (const auto& all : {HostileConfigs(), HostileHeaders(), HostileTensors(), HostileFiles(),
                          HostileLinks(), HostileVariants()}) {
    artefacts += all.size();
    for (const Hostile& hostile : all) reasons.insert(hostile.reason);
  }
  EXPECT_GE(artefacts, 200u);
  EXPECT_GE(reasons.size(), 15u);
}

TEST(HostileDirectory, MissingOrNoDirectoryIsNamed) {
  const TestDir dir("hostile_directory_test");
  dir.Write("file", "x");
  for (const char* name : {"absent", "file"}) {
    const auto adapter = LoadPeftAdapter(dir.path() / name, TestModel(), {});
    ASSERT_FALSE(adapter.ok());
    EXPECT_EQ(GetErrorDetail(adapter.status())->reason, Reason::kPathInvalid);
    EXPECT_NE(std::string(adapter.status().message()).find(name), std::string::npos);
  }
}

// Links that stay inside are fine: what counts is where the bytes lie.
TEST(HostileDirectory, ALinkInsideIsFollowed) {
  const TestDir dir("hostile_link_test");
  const ModelSpec model = TestModel();
  dir.Write("adapter_config.json", TestConfig());
  dir.Write("blob", SafetensorsBytes(QvTensors(model, 8)));
  fs::create_symlink("blob", dir.path() / kWeights);
  EXPECT_TRUE(LoadPeftAdapter(dir.path(), model, {}).ok());
}

}  // namespace
}  // namespace rootstock
