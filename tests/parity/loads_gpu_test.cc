// Loads on a GPU beside running steps: into pages that hold an adapter of huge numbers, so that
// what reads a row before it is written gives another answer.
#include "common/base/status.h"
#include "tests/parity/runtime_rank.h"
#include "worker/device/copy_lane.h"

namespace rootstock {
namespace {

constexpr uint32_t kNumPages = 6000;
constexpr uint32_t kFirstPage = 700;  // of adapters
constexpr uint32_t kPagesOfAdapter = 20;
constexpr uint32_t kRows = 12;

NewSequence SequenceOf(uint32_t slot, size_t prompt, const std::string& adapter) {
  NewSequence s;
  s.slot = SequenceSlot(slot);
  s.num_prompt_tokens = s.num_tokens = static_cast<uint32_t>(prompt);
  s.seed = 100 + slot;
  s.sampling.temperature = 0;
  s.sampling.logprobs = 3;
  if (!adapter.empty()) s.spans = {{0, 0, {{Sha256Of(adapter), 1.0f}}}};
  return s;
}

// Every copy comes behind one of kBallastBytes.
class SlowCopyLane : public CopyLane {
 public:
  static constexpr size_t kBallastBytes = size_t{256} << 20;
  explicit SlowCopyLane(std::unique_ptr<CopyLane> lane)
      : lane_(std::move(lane)),
        from_(*lane_->AllocateHost(kBallastBytes, "ballast")),
        to_(*lane_->Allocate(kBallastBytes, "ballast")) {}
  absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes, const std::string& purpose) override {
    return lane_->AllocateHost(bytes, purpose);
  }
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, const std::string& purpose) override {
    return lane_->Allocate(bytes, purpose);
  }
  absl::Status Copy(std::span<const CopyRun> runs) override {
    const CopyRun ballast{to_.data(), from_.data(), kBallastBytes};
    RETURN_IF_ERROR(lane_->Copy({&ballast, 1}));
    return lane_->Copy(runs);
  }
  absl::StatusOr<Mark> MakeMark() override { return lane_->MakeMark(); }
  void NotifyWhenDone(std::function<void(absl::Status)> done) override {
    lane_->NotifyWhenDone(std::move(done));
  }
  absl::Status FollowInStep(const Mark& mark) override { return lane_->FollowInStep(mark); }
  double TakeStallSeconds() override { return lane_->TakeStallSeconds(); }

 private:
  const std::unique_ptr<CopyLane> lane_;
  const DeviceBuffer from_, to_;
};

class SlowCopyDevice : public Device {
 public:
  explicit SlowCopyDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}
  std::string name() const override { return device_->name(); }
  std::string kind() const override { return device_->kind(); }
  bool host_addressable() const override { return device_->host_addressable(); }
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, const std::string& purpose) override {
    return device_->Allocate(bytes, purpose);
  }
  absl::StatusOr<uint64_t> FreeBytes() override { return device_->FreeBytes(); }
  absl::StatusOr<std::byte*> Stage(std::byte* to, size_t bytes) override {
    return device_->Stage(to, bytes);
  }
  absl::Status WriteBack() override { return device_->WriteBack(); }
  absl::Status Read(const void* from, std::span<std::byte> out) override {
    return device_->Read(from, out);
  }
  uint64_t Mark() override { return device_->Mark(); }
  absl::Status Wait(uint64_t mark) override { return device_->Wait(mark); }
  void NotifyWhenDone(std::function<void()> done) override {
    device_->NotifyWhenDone(std::move(done));
  }
  absl::StatusOr<std::unique_ptr<CopyLane>> MakeCopyLane() override {
    ASSIGN_OR_RETURN(auto lane, device_->MakeCopyLane());
    return std::make_unique<SlowCopyLane>(std::move(lane));
  }

 private:
  const std::unique_ptr<Device> device_;
};

class LoadsGpuTest : public testing::Test {
 protected:
  static std::unique_ptr<RuntimeRank> Make(Backend backend) {
    auto rank = std::make_unique<RuntimeRank>(std::move(backend), kNumPages);
    rank->Attach(64, 512);
    return rank;
  }
  LoadsGpuTest() : cpu_(Make(MakeCpuBackend(1))) {
    auto backend = MakeCudaBackend(0, DType::kF32);
    EXPECT_TRUE(backend.ok()) << backend.status();
    gpu_ = Make(*std::move(backend));
    for (uint32_t i = 0; i < kRows; ++i) {
      std::vector<int32_t>& prompt = prompts_.emplace_back();
      for (uint32_t t = 0; t < 4 + i; ++t) prompt.push_back((5 + 7 * i + 3 * t) % 60);
    }
  }
  std::vector<NewSequence> Sequences(const std::string& adapter) const {
    std::vector<NewSequence> out;
    for (uint32_t i = 0; i < kRows; ++i) {
      out.push_back(SequenceOf(i, prompts_[i].size(), adapter));
    }
    return out;
  }
  std::vector<Answer> Expected(const std::string& adapter) {
    if (!adapter.empty()) cpu_->Load(Sha256Of(adapter), kFirstPage, ScaleOf(adapter));
    std::vector<Answer> out = cpu_->Run(Sequences(adapter), prompts_);
    if (!adapter.empty()) cpu_->Drop(Sha256Of(adapter));
    return out;
  }
  // Contents that differ.
  static float ScaleOf(const std::string& adapter) {
    return adapter == "poison" ? 1e30f : 1.0f + 0.25f * static_cast<float>(adapter.back() - 'a');
  }
  void Poison(uint32_t first_page) {
    gpu_->Load(Sha256Of("poison"), first_page, ScaleOf("poison"));
    gpu_->Drop(Sha256Of("poison"));
  }
  static void ExpectSame(const std::vector<Answer>& got, const std::vector<Answer>& want) {
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
      ASSERT_EQ(got[i].logprobs.size(), want[i].logprobs.size());
      for (size_t l = 0; l < want[i].logprobs.size(); ++l) {
        EXPECT_NEAR(got[i].logprobs[l], want[i].logprobs[l], 2e-3) << i;
      }
    }
  }

  std::unique_ptr<RuntimeRank> cpu_, gpu_;
  std::vector<std::vector<int32_t>> prompts_;
};

TEST_F(LoadsGpuTest, BesideRunningSteps) {
  const std::vector<Answer> base = Expected("");
  for (const char* name : {"a", "b", "c", "d"}) {
    const std::vector<Answer> want = Expected(name);
    Poison(kFirstPage);
    const CommandId load = gpu_->BeginLoad(Sha256Of(name), kFirstPage, ScaleOf(name));
    ExpectSame(gpu_->Run(Sequences(""), prompts_), base);
    gpu_->EndLoad(load);
    ExpectSame(gpu_->Run(Sequences(name), prompts_), want);
    // Another comes while this one is in use.
    Poison(kFirstPage + kPagesOfAdapter);
    const CommandId other = gpu_->BeginLoad(Sha256Of("e"), kFirstPage + kPagesOfAdapter, 2.0f);
    ExpectSame(gpu_->Run(Sequences(name), prompts_), want);
    gpu_->EndLoad(other);
    ExpectSame(gpu_->Run(Sequences(name), prompts_), want);
    gpu_->Drop(Sha256Of("e"));
    gpu_->Drop(Sha256Of(name));
  }
}

// Each copy lies behind one that takes milliseconds, so that the step is enqueued long before.
TEST_F(LoadsGpuTest, EagerStepsFollowTheCopyLayerByLayer) {
  auto backend = MakeCudaBackend(0, DType::kF32);
  ASSERT_TRUE(backend.ok()) << backend.status();
  backend->device = std::make_unique<SlowCopyDevice>(std::move(backend->device));
  const auto slow = Make(*std::move(backend));
  for (const char* name : {"a", "b", "c", "d"}) {
    const std::vector<Answer> want = Expected(name);
    slow->Load(Sha256Of("poison"), kFirstPage, ScaleOf("poison"));
    slow->Drop(Sha256Of("poison"));
    slow->Stage(Sha256Of(name), ScaleOf(name));
    const double before = slow->stats().stall_seconds;
    const CommandId load = slow->BeginLoad(Sha256Of(name), kFirstPage, ScaleOf(name));
    ExpectSame(slow->Run(Sequences(name), prompts_, /*eager=*/true), want);
    EXPECT_GT(slow->stats().stall_seconds, before + 1e-3);
    slow->EndLoad(load);
    ExpectSame(slow->Run(Sequences(name), prompts_), want);
    slow->Drop(Sha256Of(name));
  }
}

TEST_F(LoadsGpuTest, EagerStepsDoNotWaitForCopiesThatHaveRun) {
  const std::vector<Answer> want = Expected("a");
  const CommandId load = gpu_->BeginLoad(Sha256Of("a"), kFirstPage, ScaleOf("a"));
  gpu_->AwaitCopies(load);
  ExpectSame(gpu_->Run(Sequences("a"), prompts_, /*eager=*/true), want);
  EXPECT_EQ(gpu_->stats().stall_seconds, 0.0);
  gpu_->EndLoad(load);
}

TEST_F(LoadsGpuTest, ReloadedFromTheHostWithoutReading) {
  const std::vector<Answer> want = Expected("a");
  gpu_->Stage(Sha256Of("a"), ScaleOf("a"));
  gpu_->ForgetContent(Sha256Of("a"));
  for (int i = 0; i < 3; ++i) {
    Poison(kFirstPage + i);
    const CommandId load = gpu_->BeginLoad(Sha256Of("a"), kFirstPage + i, ScaleOf("a"),
                                           /*write_content=*/false);
    gpu_->EndLoad(load);
    ExpectSame(gpu_->Run(Sequences("a"), prompts_), want);
    gpu_->Drop(Sha256Of("a"));
  }
}

}  // namespace
}  // namespace rootstock
