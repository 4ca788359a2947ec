// Every model and accepted adapter of tests/cases at every tp_size that the model allows, all in
// one batch, before and after evict and reload.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/lora/peft_loader.h"
#include "tests/parity/test_group.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

const fs::path kCases = ROOTSTOCK_SOURCE_DIR "/tests/cases";
constexpr float kLogitError = 1e-3f;

nlohmann::json ReadExpectation(const fs::path& dir) {
  std::ifstream in(dir / "expect.json");
  return nlohmann::json::parse(in);
}

std::vector<std::string> Models() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kCases / "models")) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

struct Probe {
  std::string adapter;  // empty: the base
  std::vector<int32_t> prompt, greedy;
  std::vector<float> last_logits;
};

void AddProbes(const nlohmann::json& expect, const std::string& adapter,
               std::vector<Probe>& probes) {
  for (const nlohmann::json& p : expect["probes"]) {
    probes.push_back({adapter, p["prompt"], p["greedy"], p["last_logits"]});
  }
}

class ConformanceTest : public testing::TestWithParam<std::string> {
 protected:
  // Accepted adapters of this model with their probes.
  void FindCases(const ModelSpec& spec) {
    AddProbes(ReadExpectation(kCases / "models" / GetParam()), "", probes_);
    for (const auto& entry : fs::directory_iterator(kCases / "adapters")) {
      const nlohmann::json expect = ReadExpectation(entry.path());
      if (expect["model"] != GetParam() || expect["verdict"] != "accept") continue;
      const std::string name = entry.path().filename();
      absl::StatusOr<PeftAdapter> adapter = LoadPeftAdapter(entry.path(), spec, {});
      ASSERT_TRUE(adapter.ok()) << name << ": " << adapter.status();
      blobs_[name] = EncodeCanonical(*adapter, spec);
      AddProbes(expect, name, probes_);
    }
  }

  void Check(TestGroup& group, int chunk, bool reverse) {
    if (reverse) std::reverse(probes_.begin(), probes_.end());
    std::vector<TestRequest> requests;
    for (const Probe& probe : probes_) {
      TestRequest request;
      request.prompt = probe.prompt;
      if (!probe.adapter.empty()) request.adapters = {probe.adapter};
      request.max_tokens = static_cast<int>(probe.greedy.size());
      request.arrival = static_cast<int>(requests.size()) % 7;
      requests.push_back(std::move(request));
    }
    const absl::Status run = group.Run(requests, chunk);
    ASSERT_TRUE(run.ok()) << run;
    for (size_t i = 0; i < probes_.size(); ++i) {
      SCOPED_TRACE(probes_[i].adapter);
      EXPECT_EQ(requests[i].tokens, probes_[i].greedy);
      for (size_t j = 0; j < probes_[i].last_logits.size(); ++j) {
        ASSERT_NEAR(requests[i].logits[0][j], probes_[i].last_logits[j], kLogitError) << j;
      }
    }
  }

  std::vector<Probe> probes_;
  std::map<std::string, std::string> blobs_;
};

TEST_P(ConformanceTest, EveryCaseInOneBatchAtEveryTpSize) {
  const fs::path dir = kCases / "models" / GetParam();
  absl::StatusOr<ModelSpec> spec = LoadModelSpec(dir);
  ASSERT_TRUE(spec.ok()) << spec.status();
  FindCases(*spec);
  int sizes = 0;
  for (int tp_size = 1; tp_size <= kMaxParityTpSize; ++tp_size) {
    if (!MakeTpPlan(*spec, tp_size).ok()) continue;
    SCOPED_TRACE(tp_size);
    ++sizes;
    GroupOptions options;
    options.tp_size = tp_size;
    absl::StatusOr<std::unique_ptr<TestGroup>> group = TestGroup::Create(dir, options);
    ASSERT_TRUE(group.ok()) << group.status();
    const size_t free = (*group)->free_pages();
    std::map<std::string, std::vector<PageId>> before;
    int chunk = 5;
    for (const ShardingMix mix : ShardingMixes(tp_size)) {
      SCOPED_TRACE(static_cast<int>(mix));
      size_t adapters = 0;
      for (const auto& [name, blob] : blobs_) {
        ASSERT_TRUE((*group)->Load(name, blob, ShardingOf(mix, adapters++)).ok()) << name;
        EXPECT_NE((*group)->adapter_pages(name), before[name]);
        before[name] = (*group)->adapter_pages(name);
      }
      Check(**group, chunk, chunk > 5);
      for (const auto& [name, blob] : blobs_) ASSERT_TRUE((*group)->Evict(name).ok());
      EXPECT_EQ((*group)->free_pages(), free);  // nothing else was kept
      chunk = chunk * 9 % 71;
    }
  }
  EXPECT_GE(sizes, kParityGpu ? 1 : 2);
}

INSTANTIATE_TEST_SUITE_P(Cases, ConformanceTest, testing::ValuesIn(Models()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace rootstock
