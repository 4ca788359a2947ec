// The memory of a GPU that others have filled but for a few GiB: pages beside the largest steps,
// what does not fit, loads without end.
#include <cuda_runtime_api.h>

#include <string>

#include "common/base/status.h"
#include "tests/parity/runtime_rank.h"

namespace rootstock {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class MemoryGpuTest : public testing::Test {
 protected:
  ~MemoryGpuTest() override { cudaFree(taken_); }

  // Takes all of the GPU's memory but `mib`.
  void LeaveFree(uint64_t mib) {
    const auto free = FreeCudaBytes(0);
    ASSERT_TRUE(free.ok()) << free.status();
    ASSERT_GT(*free, mib * kMiB);
    ASSERT_EQ(cudaMalloc(&taken_, *free - mib * kMiB), cudaSuccess);
  }
  static Backend Cuda() {
    auto backend = MakeCudaBackend(0, DType::kF32);
    EXPECT_TRUE(backend.ok()) << backend.status();
    return *std::move(backend);
  }
  static void ExpectNoMemory(const absl::Status& status, const std::string& text) {
    ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kNoMemory);
    EXPECT_NE(status.message().find(text), std::string::npos) << status;
  }
  static NewSequence Sequence(uint32_t slot, uint32_t prompt, const Digest& adapter) {
    NewSequence s;
    s.slot = SequenceSlot(slot);
    s.num_prompt_tokens = s.num_tokens = prompt;
    s.sampling.temperature = 0;
    s.spans = {{0, 0, {{adapter, 1.0f}}}};
    return s;
  }

  void* taken_ = nullptr;
};

// Activations of such steps alone take more than a fixed reserve would be.
TEST_F(MemoryGpuTest, PagesLeaveRoomForTheLargestSteps) {
  LeaveFree(8192);
  RuntimeRank gpu(Cuda(), /*num_pages=*/0), cpu(MakeCpuBackend(1));
  const auto report = gpu.TryAttach(64, 600000);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->geometry.num_pages, gpu.geometry().num_pages);
  const std::optional<DeviceMemoryUse> use = gpu.memory();
  ASSERT_TRUE(use.has_value());
  EXPECT_GT(use->workspace, 4096 * kMiB);
  EXPECT_GT(use->pages, 512 * kMiB);
  EXPECT_GT(use->weights, 0u);
  EXPECT_LT(use->free, 1024 * kMiB) << "memory that nobody uses";
  EXPECT_LT(use->graphs, 1024 * kMiB);
  // The first adapter, then the widest step there are sequences for.
  cpu.Attach(64, 8000);
  const Digest adapter = Sha256Of("adapter");
  gpu.Load(adapter, report->geometry.num_pages - 30);
  cpu.Load(adapter, 370);
  std::vector<NewSequence> sequences;
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t i = 0; i < 44; ++i) {  // as many as the host's 400 pages hold beside the adapter
    prompts.emplace_back();
    for (int t = 0; t < 100; ++t) prompts[i].push_back(static_cast<int32_t>(i * 31 + t * 7) % 60);
    sequences.push_back(Sequence(i, 100, adapter));
  }
  const std::vector<Answer> got = gpu.Run(sequences, prompts), want = cpu.Run(sequences, prompts);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
  // The same coordinator once more; then one that asks for steps that don't fit beside the pages.
  EXPECT_TRUE(gpu.TryAttach(64, 600000).ok());
  ExpectNoMemory(gpu.TryAttach(64, 2000000).status(), "bytes of device memory are not to be had");
}

TEST_F(MemoryGpuTest, StepsThatDoNotFitAreRefusedWithTheSizes) {
  LeaveFree(1024);
  RuntimeRank gpu(Cuda(), /*num_pages=*/0);
  const absl::Status refused = gpu.TryAttach(64, 600000).status();
  ExpectNoMemory(refused, "bytes of device memory are not to be had");
  EXPECT_NE(refused.message().find("are free"), std::string::npos) << refused;
}

TEST_F(MemoryGpuTest, NoRoomForPagesIsRefusedWithTheSizes) {
  LeaveFree(520);
  RuntimeRank gpu(Cuda(), /*num_pages=*/0);
  ExpectNoMemory(gpu.TryAttach(8, 64).status(), "MiB are free beside weights");
}

TEST_F(MemoryGpuTest, LoadsLeaveNothingBehind) {
  RuntimeRank gpu(Cuda());
  gpu.Attach(8, 64);
  const auto churn = [&gpu](int loads) {
    for (int i = 0; i < loads; ++i) {
      const Digest adapter = Sha256Of(absl::StrCat("adapter ", i));
      gpu.Load(adapter, 300 + i % 3 * 30);
      gpu.Drop(adapter);
    }
  };
  churn(20);
  const uint64_t free = gpu.memory()->free;
  churn(400);
  EXPECT_EQ(gpu.memory()->free, free);
}

}  // namespace
}  // namespace rootstock
