// A worker's memory depends on the adapters it holds, not on how many it has held.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layout/adapter_image.h"
#include "common/lora/peft_loader.h"
#include "worker/parallel/thread_communicator.h"
#include "worker/runtime/finish_load.h"
#include "worker/runtime/loaded_model.h"
#include "worker/runtime/worker_runtime.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

const fs::path kModel = ROOTSTOCK_SOURCE_DIR "/tests/cases/models/tiny-llama";
const fs::path kAdapters = ROOTSTOCK_SOURCE_DIR "/tests/cases/adapters";
constexpr uint32_t kHeld = 6;  // adapters resident at a time
constexpr uint32_t kPagesOfOne = 40;
constexpr uint32_t kNumPages = 600;
constexpr uint64_t kHostBytes = uint64_t{8} << 20;

size_t HeapBytes() {
  malloc_trim(0);
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

size_t ResidentBytes() {
  size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

class AdapterChurnTest : public testing::Test {
 protected:
  AdapterChurnTest()
      : dir_(fs::temp_directory_path() / absl::StrCat("adapter_churn.", getpid())),
        spec_(*LoadModelSpec(kModel)),
        tp_(*MakeTpPlan(spec_, 1)) {
    fs::create_directories(dir_);
    GeometryRequest request;
    request.num_pages = kNumPages;
    request.page_tokens = 4;
    geometry_ = *MakeGeometry(spec_, tp_, DType::kF32, request);
    for (const char* name : {"ok-all-linear", "ok-rslora-r16", "ok-patterns", "ok-plain-qv"}) {
      blobs_.push_back(EncodeCanonical(*LoadPeftAdapter(kAdapters / name, spec_, {}), spec_));
    }
    model_ = *LoadedModel::Create(
        {kModel, false, DType::kF32}, spec_, tp_, MakeCpuBackend(/*threads=*/1), geometry_, *self_,
        {[this](const Digest& d, const BlobSink& sink) { return Content(d, sink); }, kHostBytes});
    runtime_ = std::make_unique<WorkerRuntime>(*model_, *self_);
    EXPECT_TRUE(runtime_->Attach({1, 1}, {100, 8, 64, 20}).ok());
  }
  ~AdapterChurnTest() override { fs::remove_all(dir_); }

  fs::path PathOf(const Digest& digest) const { return dir_ / digest.Hex(); }
  // Whatever lies under the digest.
  absl::Status Content(const Digest& digest, const BlobSink& sink) const {
    std::ifstream in(PathOf(digest), std::ios::binary);
    return GiveAll(std::string(std::istreambuf_iterator<char>(in), {}), sink);
  }
  // Adapter i of as many as one likes: contents take turns, digests do not.
  static Digest DigestOf(uint32_t i) { return Sha256Of(absl::StrCat("adapter ", i)); }

  Completion Do(decltype(Command::kind) kind) {
    const CommandId id(++commands_);
    const auto completion = runtime_->Start({id, {1, 1}, std::move(kind)});
    if (completion.ok() && !completion->has_value()) return {id, FinishLoad(*runtime_, id), {}};
    EXPECT_TRUE(completion.ok() && (*completion)->outcome.ok());
    return **completion;
  }

  void Load(uint32_t i) {
    const std::string& blob = blobs_[i % blobs_.size()];
    std::ofstream(PathOf(DigestOf(i)), std::ios::binary) << blob;
    const auto content = CanonicalAdapter::Parse(
        std::span(reinterpret_cast<const uint8_t*>(blob.data()), blob.size()), spec_);
    const auto layout = AdapterLayout::Create(
        spec_, content->spec(), tp_, LoraSharding::kReplicated, DType::kF32, geometry_.page_bytes);
    ASSERT_LE(layout->num_pages(), kPagesOfOne);
    LoadAdapter load{DigestOf(i), layout->id(), LoraSharding::kReplicated, {}};
    const uint32_t first = 1 + i % (kHeld + 1) * kPagesOfOne;
    for (uint32_t p = 0; p < layout->num_pages(); ++p) load.pages.push_back(PageId(first + p));
    EXPECT_TRUE(Do(std::move(load)).outcome.ok());
  }
  // From every tier.
  void Drop(uint32_t i) {
    EXPECT_GT(Do(DropAdapter{DigestOf(i), kAllTiers}).freed.host, 0u);
    runtime_->loader().host().TakeChanges();  // as the link does
    fs::remove(PathOf(DigestOf(i)));
  }
  // One step with a row of adapter i.
  void Use(uint32_t i) {
    NewSequence sequence;
    sequence.slot = SequenceSlot(0);
    sequence.num_prompt_tokens = sequence.num_tokens = 3;
    sequence.sampling.temperature = 0;
    sequence.spans = {{0, 0, {{DigestOf(i), 1.0f}}}};
    const PlanRow row{SequenceSlot(0), 3, 0, {5, 6, 7}, {PageId(kNumPages - 1)}, RowOutput::kToken};
    EXPECT_EQ(Do(StepPlan{{sequence}, {row}}).step.rows.size(), 1u);
    EXPECT_GT(runtime_->last_step().lora_expand.segments, 0u);
    Do(ReleaseSlots{{SequenceSlot(0)}});
  }
  // Loads, uses and drops adapters [begin, end), kHeld of them resident at a time.
  void Churn(uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; ++i) {
      Load(i);
      Use(i);
      if (i >= kHeld) Drop(i - kHeld);
    }
  }

  const fs::path dir_;
  const ModelSpec spec_;
  const TpPlan tp_;
  PageGeometry geometry_;
  std::vector<std::string> blobs_;
  std::unique_ptr<ThreadCommunicator> self_ = ThreadCommunicator::Self();
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<WorkerRuntime> runtime_;
  uint64_t commands_ = 0;
};

TEST_F(AdapterChurnTest, MemoryIsFlatOverHundredsOfAdapters) {
  constexpr uint32_t kWarm = 40, kMany = 440;  // the same contents are resident after both
  Churn(0, kWarm);
  const size_t heap = HeapBytes(), resident = ResidentBytes();
  Churn(kWarm, kMany);
  EXPECT_EQ(runtime_->num_adapters(), kHeld);
  // 400 row tables of the smallest adapter alone would be several times this.
  EXPECT_LE(HeapBytes(), heap + (16 << 10));
  EXPECT_LE(ResidentBytes(), resident + (512 << 10));
  for (uint32_t i = kMany - kHeld; i < kMany; ++i) Drop(i);
  EXPECT_EQ(runtime_->num_adapters(), 0u);
  EXPECT_EQ(runtime_->loader().host().used_bytes(), 0u);
  EXPECT_LT(HeapBytes(), heap);
}

}  // namespace
}  // namespace rootstock
