// What else a batch holds, how prompts are cut and where pages lie changes no request's result.
#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/status.h"
#include "common/lora/peft_loader.h"
#include "tests/parity/test_group.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

const fs::path kCases = ROOTSTOCK_SOURCE_DIR "/tests/cases";

class BatchTest : public testing::Test {
 protected:
  std::unique_ptr<TestGroup> Group(uint32_t page_tokens, int tp_size = 1, int threads = 1) {
    GroupOptions options;
    options.tp_size = std::min(tp_size, kMaxParityTpSize);
    options.page_tokens = page_tokens;
    options.threads = threads;
    options.seed = page_tokens;
    absl::StatusOr<std::unique_ptr<TestGroup>> group =
        TestGroup::Create(kCases / "models/tiny-llama", options);
    EXPECT_TRUE(group.ok()) << group.status();
    for (const char* name : {"ok-all-linear", "ok-rslora-r16", "ok-zero-b"}) {
      absl::StatusOr<PeftAdapter> adapter =
          LoadPeftAdapter(kCases / "adapters" / name, (*group)->spec(), {});
      EXPECT_TRUE(adapter.ok()) << adapter.status();
      blob_[name] = EncodeCanonical(*adapter, (*group)->spec());
      lora_[name] = adapter->spec;
      EXPECT_TRUE((*group)->Load(name, blob_[name]).ok());
    }
    return std::move(*group);
  }

  static TestRequest Request(int length, std::vector<std::string> adapters, int max_tokens) {
    TestRequest request;
    for (int i = 0; i < length; ++i) request.prompt.push_back((i * 37 + length * 11 + 5) % 320);
    request.adapters = std::move(adapters);
    request.max_tokens = max_tokens;
    return request;
  }

  static TestRequest RunAlone(TestGroup& group, const TestRequest& request, int chunk) {
    std::vector<TestRequest> one = {request};
    const absl::Status run = group.Run(one, chunk);
    EXPECT_TRUE(run.ok()) << run;
    return one[0];
  }

  static void ExpectNear(const TestRequest& a, const TestRequest& b, float tolerance) {
    EXPECT_EQ(a.tokens, b.tokens);
    ASSERT_EQ(a.logits.size(), b.logits.size());
    for (size_t i = 0; i < a.logits.size(); ++i) {
      for (size_t j = 0; j < a.logits[i].size(); ++j) {
        ASSERT_NEAR(a.logits[i][j], b.logits[i][j], tolerance);
      }
    }
  }

#ifndef ROOTSTOCK_PARITY_GPU
  // Bytes of an adapter's rows on the only tp_rank.
  uint64_t WeightBytes(const ModelSpec& spec, const std::string& name) {
    uint64_t bytes = 0;
    for (const LoraModule& m : lora_[name].modules) {
      bytes +=
          uint64_t{4} * m.lora_rank * (spec.in_features(m.module) + spec.out_features(m.module));
    }
    return bytes;
  }
#endif

  std::map<std::string, std::string> blob_;
  std::map<std::string, LoraSpec> lora_;
};

TEST_F(BatchTest, ChunksCompanyPagesAndThreadsChangeNothing) {
  const TestRequest request = Request(150, {"ok-all-linear"}, 12);
  const std::unique_ptr<TestGroup> plain = Group(16);
  const TestRequest alone = RunAlone(*plain, request, 512);
  for (const int chunk : {1, 7, 31, 64, 149}) {
    SCOPED_TRACE(chunk);
    ExpectNear(RunAlone(*plain, request, chunk), alone, 1e-4f);
  }
  for (const uint32_t page_tokens : {4u, 5u, 64u}) {
    SCOPED_TRACE(page_tokens);
    const std::unique_ptr<TestGroup> group = Group(page_tokens, 2, 2);
    std::vector<TestRequest> all = {Request(9, {}, 40), request, Request(90, {"ok-rslora-r16"}, 5),
                                    Request(33, {"ok-all-linear"}, 30),
                                    Request(1, {"ok-zero-b"}, 9)};
    for (size_t i = 0; i < all.size(); ++i) all[i].arrival = static_cast<int>(3 * i % 4);
    const absl::Status run = group->Run(all, 23);
    ASSERT_TRUE(run.ok()) << run;
    ExpectNear(all[1], alone, 1e-4f);
  }
}

#ifndef ROOTSTOCK_PARITY_GPU  // whose kernels don't count
TEST_F(BatchTest, AnAdaptersWeightsAreReadOnceAStepAndBaseRowsReadNone) {
  const std::unique_ptr<TestGroup> group = Group(16);
  const auto read = [&](const std::vector<std::vector<std::string>>& rows) {
    std::vector<TestRequest> requests;
    for (const auto& adapters : rows) requests.push_back(Request(3, adapters, 2));
    EXPECT_TRUE(group->Run(requests, 16).ok());
    return group->last_step(0);
  };
  const uint64_t a = WeightBytes(group->spec(), "ok-all-linear");
  const uint64_t b = WeightBytes(group->spec(), "ok-rslora-r16");
  EXPECT_EQ(read({{}, {}, {}}).ops.lora_weight_bytes, 0u);
  EXPECT_EQ(read({{}, {}, {}}).ops.lora_shrink.segments, 0u);
  EXPECT_EQ(read({{}, {"ok-all-linear"}, {}}).ops.lora_weight_bytes, a);
  const std::vector<std::string> x = {"ok-all-linear"}, y = {"ok-rslora-r16"};
  const ForwardStats mixed = read({x, y, {}, x, y, x, x, {}, y});
  EXPECT_EQ(mixed.ops.lora_weight_bytes, a + b);
  const size_t modules =
      lora_["ok-all-linear"].modules.size() + lora_["ok-rslora-r16"].modules.size();
  EXPECT_EQ(mixed.ops.lora_shrink.segments, modules);
  EXPECT_EQ(mixed.ops.lora_expand.segments, modules);
}
#endif

TEST_F(BatchTest, StackedAdaptersAdd) {
  const std::unique_ptr<TestGroup> group = Group(16);
  const auto run = [&](std::vector<std::string> adapters) {
    return RunAlone(*group, Request(20, std::move(adapters), 4), 16);
  };
  const TestRequest both = run({"ok-all-linear", "ok-rslora-r16"});
  ExpectNear(both, run({"ok-rslora-r16", "ok-all-linear"}), 1e-4f);
  ExpectNear(run({"ok-all-linear", "ok-zero-b"}), run({"ok-all-linear"}), 0.0f);
  ExpectNear(run({"ok-zero-b"}), run({}), 0.0f);
  EXPECT_NE(both.logits[0], run({"ok-all-linear"}).logits[0]);
}

TEST_F(BatchTest, ReloadsTakeNoMorePages) {
  const std::unique_ptr<TestGroup> group = Group(16, 2);
  const TestRequest request = Request(40, {"ok-all-linear"}, 6);
  const TestRequest first = RunAlone(*group, request, 16);
  const size_t free = group->free_pages();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(group->Evict("ok-all-linear").ok());
    ASSERT_TRUE(group->Load("ok-all-linear", blob_["ok-all-linear"]).ok());
    ExpectNear(RunAlone(*group, request, 16), first, 0.0f);
    EXPECT_EQ(group->free_pages(), free);
  }
}

}  // namespace
}  // namespace rootstock
