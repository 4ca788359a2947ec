// The memory of a GPU that others have filled but for a few GiB: pages beside the largest steps,
// what does not fit, loads without end; and what weights leave on the host.
#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "tests/parity/runtime_rank.h"
#include "worker/weights/weights_rig.h"

namespace rootstock {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Of this process.
uint64_t ResidentBytes() {
  uint64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

class MemoryGpuTest : public testing::Test {
 protected:
  ~MemoryGpuTest() override { GiveBack(); }

  // Takes all of the GPU's memory but `mib`.
  void LeaveFree(uint64_t mib) {
    const auto free = FreeCudaBytes(0);
    ASSERT_TRUE(free.ok()) << free.status();
    ASSERT_GT(*free, mib * kMiB);
    // With nothing to be left, what is not to be had in one piece stays for the pool.
    uint64_t bytes = *free - mib * kMiB;
    while (cudaMalloc(&taken_, bytes) != cudaSuccess) {
      ASSERT_EQ(mib, 0u);
      cudaGetLastError();
      bytes -= kMiB;
    }
  }
  // And the rest: nothing is left in CUDA's pool either.
  void LeaveNothing() {
    LeaveFree(0);
    for (size_t bytes = kMiB << 5; bytes >= 512; bytes /= 2) {
      void* piece = nullptr;
      while (cudaMallocAsync(&piece, bytes, nullptr) == cudaSuccess) pieces_.push_back(piece);
      cudaGetLastError();
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  void GiveBack() {
    for (void* piece : pieces_) cudaFreeAsync(piece, nullptr);
    pieces_.clear();
    cudaFree(taken_);
    taken_ = nullptr;
    cudaDeviceSynchronize();
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
  std::vector<void*> pieces_;
};

// Activations of such steps alone take more than a fixed reserve would be.
TEST_F(MemoryGpuTest, PagesLeaveRoomForTheLargestSteps) {
  LeaveFree(10240);
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

// What was free when an adapter came is what the answer says; the rank goes on, and loads it later.
TEST_F(MemoryGpuTest, ALoadWithoutMemoryIsRefusedWithTheSizes) {
  constexpr uint32_t kLoads = 2500,
                     kPagesOfAdapter = 20;  // more tables than the loader has at hand
  RuntimeRank gpu(Cuda(), 300 + kPagesOfAdapter * kLoads);
  gpu.Attach(8, 64);
  const auto name = [](uint32_t i) { return Sha256Of(absl::StrCat("adapter ", i)); };
  const auto load = [&](uint32_t i) { return gpu.TryLoad(name(i), 300 + i * kPagesOfAdapter); };
  ASSERT_TRUE(load(0).ok());
  const std::vector<NewSequence> sequences = {Sequence(0, 3, name(0))};
  const std::vector<std::vector<int32_t>> prompts = {{5, 6, 7}};
  const std::vector<Answer> want = gpu.Run(sequences, prompts);
  LeaveNothing();
  absl::Status refused;
  uint32_t last = 0;
  while (refused.ok() && ++last < kLoads) refused = load(last);
  ExpectNoMemory(refused, "adapter tables=");
  EXPECT_NE(refused.message().find("bytes of device memory are not to be had"), std::string::npos)
      << refused;
  EXPECT_EQ(gpu.Run(sequences, prompts)[0].tokens, want[0].tokens);
  GiveBack();
  EXPECT_TRUE(load(last).ok());
}

// The host keeps nothing of them; the pinned pieces that brought them go when it is asked what the
// GPU has free for pages.
class HostMemoryGpuTest : public testing::Test {
 protected:
  using Load = std::function<absl::StatusOr<std::unique_ptr<ModelWeights>>(
      const ModelSpec& spec, const TpPlan& tp, Device& device)>;

  // Two matrices of that many rows of 8 KiB, and little else.
  static ModelSpec WideSpec(int vocab_size) {
    ModelSpec spec = *LoadModelSpec(kModel);
    spec.architecture = Architecture::kQwen2;
    spec.qkv_bias = true;
    spec.hidden_size = 4096;
    spec.vocab_size = vocab_size;
    return spec;
  }
  static void ExpectNothingStays(const ModelSpec& spec, const Load& load) {
    auto backend = MakeCudaBackend(0, DType::kBF16);
    ASSERT_TRUE(backend.ok()) << backend.status();
    const TpPlan tp = *MakeTpPlan(spec, 1);
    const uint64_t before = ResidentBytes();
    const auto weights = load(spec, tp, *backend->device);
    ASSERT_TRUE(weights.ok()) << weights.status();
    ASSERT_GT((*weights)->device_bytes(), uint64_t{16384} * spec.vocab_size);
    ASSERT_TRUE(backend->device->FreeBytes().ok());
    const uint64_t after = ResidentBytes();
    std::printf("resident before and after weights: %zu, %zu MiB\n", before / kMiB, after / kMiB);
    EXPECT_LT(after, before + 100 * kMiB);
  }
};

TEST_F(HostMemoryGpuTest, RandomWeightsLeaveNothing) {
  ExpectNothingStays(WideSpec(131072), [](const ModelSpec& spec, const TpPlan& tp, Device& device) {
    return ModelWeights::Dummy(spec, tp, 0, device, 1, {});
  });
}

// Half a GiB of them: neither a mapping of the file stays nor what it was read into.
TEST_F(HostMemoryGpuTest, WeightsOfAFileLeaveNothing) {
  const ModelSpec spec = WideSpec(32768);
  ModelDir dir("host-memory");
  dir.AddModel(spec, DType::kBF16);
  dir.Write();
  ExpectNothingStays(spec, [&dir](const ModelSpec& spec, const TpPlan& tp, Device& device) {
    LoadOptions options;
    options.dtype = DType::kBF16;
    return ModelWeights::Load(dir.path(), spec, tp, 0, device, options);
  });
}

}  // namespace
}  // namespace rootstock
