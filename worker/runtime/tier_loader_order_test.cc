// In which order a load's pieces are copied, and what a step waits for that follows them.
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "common/base/status.h"
#include "common/lora/canonical.h"
#include "worker/device/cpu_copy_lane.h"
#include "worker/device/cpu_device.h"
#include "worker/runtime/tier_loader.h"

namespace rootstock {
namespace {

constexpr int kNumLayers = 24;
constexpr uint32_t kLayerBytes = 512;  // of a layer's rows
constexpr int kOrderedLayers = 4;      // copies of them are enqueued with the order

// A mark holds the number of bytes copied so far. *Thread-safe.*
class CountingLane : public CpuCopyLane {
 public:
  absl::Status Copy(std::span<const CopyRun> runs) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !held_ || std::this_thread::get_id() == step_thread_; });
    const uint64_t before = copied_;
    for (const CopyRun& run : runs) copied_ += run.bytes;
    copies_.push_back(copied_ - before);
    return CpuCopyLane::Copy(runs);
  }
  absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes, const std::string& purpose) override {
    CountTaken();
    return CpuCopyLane::AllocateHost(bytes, purpose);
  }
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, const std::string& purpose) override {
    CountTaken();
    return CpuCopyLane::Allocate(bytes, purpose);
  }
  absl::StatusOr<Mark> MakeMark() override {
    std::lock_guard lock(mutex_);
    return std::make_shared<const uint64_t>(copied_);
  }
  absl::Status FollowInStep(const Mark& mark) override {
    followed_.push_back(*static_cast<const uint64_t*>(mark.get()));
    return absl::OkStatus();
  }
  // All threads' but the one that made the lane.
  void Hold(bool held) {
    std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  uint64_t copied() {
    std::lock_guard lock(mutex_);
    return copied_;
  }
  // Bytes of each Copy since the last call.
  std::vector<uint64_t> TakeCopies() {
    std::lock_guard lock(mutex_);
    return std::exchange(copies_, {});
  }
  // Pieces of memory by the thread that made the lane.
  int taken() const { return taken_; }
  const std::vector<uint64_t>& followed() const { return followed_; }

 private:
  void CountTaken() {
    if (std::this_thread::get_id() == step_thread_) ++taken_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int taken_ = 0;
  const std::thread::id step_thread_ = std::this_thread::get_id();
  bool held_ = false;
  uint64_t copied_ = 0;
  std::vector<uint64_t> copies_, followed_;
};

ModelSpec DeepModel() {
  ModelSpec spec;
  spec.num_layers = kNumLayers;
  spec.hidden_size = 16;
  spec.ffn_size = 32;
  spec.num_heads = spec.num_kv_heads = 2;
  spec.head_dim = 8;
  spec.vocab_size = 64;
  return spec;
}

class TierLoaderOrderTest : public testing::Test {
 protected:
  TierLoaderOrderTest() {
    LoraSpec lora;
    std::vector<LoraWeights> weights(kNumLayers);
    for (int layer = 0; layer < kNumLayers; ++layer) {
      lora.modules.push_back({layer, Module::kQ, 2, 0.5f});
      weights[layer].a.resize(2 * 16 * sizeof(float), static_cast<uint8_t>(layer));
      weights[layer].b.resize(2 * 16 * sizeof(float), static_cast<uint8_t>(layer));
    }
    content_ = EncodeCanonical(lora, weights, spec_);
    layout_ = std::make_unique<AdapterLayout>(*AdapterLayout::Create(
        spec_, lora, tp_, LoraSharding::kReplicated, DType::kF32, kLayerBytes));
    cache_ = std::make_unique<HostCache>(
        *HostBlocks::Create(lane_, kLayerBytes, kNumLayers * uint64_t{kLayerBytes}));
    slab_ = *Slab::Create(device_, {kNumLayers + 1, kLayerBytes, 4});
    LoaderParts parts{spec_, tp_, 0, DType::kF32, kLayerBytes, &lane_, cache_.get(), {}, 1};
    parts.ordered_bytes = kOrderedLayers * kLayerBytes;
    parts.read = [this](const Digest&, const BlobSink& sink) { return GiveAll(content_, sink); };
    loader_ = std::make_unique<TierLoader>(std::move(parts));
    loader_->SetSlab(slab_.get());
    loader_->NotifyWhenDone([this] {
      std::lock_guard lock(mutex_);
      changed_.notify_all();
    });
    const CommandId stage(1);
    loader_->Stage(
        stage, {Sha256Of(content_), layout_->id(), LoraSharding::kReplicated, /*to_host=*/true});
    EXPECT_TRUE(End(stage).ok());
  }
  void BeginLoad(CommandId id) {
    LoadAdapter load{Sha256Of(content_), layout_->id(), LoraSharding::kReplicated, {}};
    for (int p = 0; p < kNumLayers; ++p) load.pages.push_back(PageId(1 + p));
    loader_->Load(id, load);
  }
  uint64_t TableBytes() const { return DeviceAdapter::TableBytes(*layout_, kNumLayers, 0); }
  absl::Status End(CommandId id) {
    std::unique_lock lock(mutex_);
    std::optional<absl::Status> outcome;
    changed_.wait(lock, [&] { return (outcome = loader_->OutcomeOf(id)).has_value(); });
    return *outcome;
  }

  CountingLane lane_;
  CpuDevice device_{1};
  const ModelSpec spec_ = DeepModel();
  const TpPlan tp_ = *MakeTpPlan(spec_, 1);
  std::string content_;
  std::unique_ptr<AdapterLayout> layout_;
  std::unique_ptr<HostCache> cache_;
  std::unique_ptr<Slab> slab_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<TierLoader> loader_;
};

// A step that is ordered with the load goes on at once, whatever the copying thread does.
TEST_F(TierLoaderOrderTest, TheFirstLayersBeginWithTheOrder) {
  lane_.Hold(true);
  const CommandId earlier(2), id(3);
  BeginLoad(earlier);
  BeginLoad(id);
  const auto adapter = loader_->TakeEarly(id);
  EXPECT_TRUE(adapter.ok());
  EXPECT_TRUE(loader_->Follow(id, 0).ok());
  EXPECT_FALSE(loader_->OutcomeOf(id).has_value());
  lane_.Hold(false);
  EXPECT_TRUE(End(id).ok());
}

// A thread that rests takes a while to wake up: the device copies meanwhile, and the host makes the
// tables meanwhile.
TEST_F(TierLoaderOrderTest, ALoadBesideNoOtherHasMoreEnqueuedWithItsOrder) {
  lane_.Hold(true);
  const CommandId id(2), other(3);
  lane_.TakeCopies();
  BeginLoad(id);
  const std::vector<uint64_t> alone = lane_.TakeCopies();
  BeginLoad(other);
  const std::vector<uint64_t> beside = lane_.TakeCopies();
  lane_.Hold(false);
  EXPECT_TRUE(End(id).ok() && End(other).ok());
  EXPECT_EQ(alone, (std::vector<uint64_t>{kLayerBytes, TableBytes(), kLayerBytes,
                                          (kOrderedLayers - 2) * kLayerBytes}));
  EXPECT_EQ(beside, (std::vector<uint64_t>{kLayerBytes, TableBytes()}));
}

TEST_F(TierLoaderOrderTest, NothingIsCopiedToPagesThatAreTooFew) {
  LoadAdapter load{Sha256Of(content_), layout_->id(), LoraSharding::kReplicated, {PageId(1)}};
  lane_.TakeCopies();
  loader_->Load(CommandId(2), load);
  EXPECT_EQ(GetErrorDetail(End(CommandId(2)))->field, "pages");
  EXPECT_TRUE(lane_.TakeCopies().empty());
}

// Memory is taken with locks of the driver's, for milliseconds at times.
TEST_F(TierLoaderOrderTest, TheStepThreadTakesNoMemoryForLoads) {
  constexpr int kAtOnce = 16;  // the coordinator's window
  const int before = lane_.taken();
  std::vector<std::unique_ptr<DeviceAdapter>> resident;
  for (int round = 0; round < 100; ++round) {
    std::vector<CommandId> ids;
    for (int i = 0; i < kAtOnce; ++i) {
      ids.emplace_back(10 + round * kAtOnce + i);
      BeginLoad(ids.back());
    }
    for (const CommandId id : ids) {
      ASSERT_TRUE(End(id).ok());
      resident.push_back(loader_->Take(id));
      loader_->Forget(id);
    }
  }
  EXPECT_EQ(lane_.taken(), before);
}

// Their images and tables are read, their pages written until they end.
TEST_F(TierLoaderOrderTest, LoadsThatHaveBegunAreNotForgottenBeforeTheyEnd) {
  BeginLoad(CommandId(2));
  ASSERT_TRUE(End(CommandId(2)).ok());
  const uint64_t each = lane_.copied();
  lane_.Hold(true);
  BeginLoad(CommandId(3));
  BeginLoad(CommandId(4));
  std::thread other([this] { lane_.Hold(false); });
  loader_->ForgetAll();
  other.join();
  EXPECT_EQ(lane_.copied(), 3 * each);
}

TEST_F(TierLoaderOrderTest, AStepFollowsGroupsOfLayersThatDouble) {
  ASSERT_EQ(layout_->num_pages(), static_cast<uint32_t>(kNumLayers));
  const CommandId id(2);
  BeginLoad(id);
  const auto adapter = loader_->TakeEarly(id);
  ASSERT_TRUE(adapter.ok());
  // The last page is not full.
  const auto layers_in = [&](uint64_t bytes) {
    bytes -= TableBytes();
    return static_cast<int>((bytes + kLayerBytes - 1) / kLayerBytes);
  };
  for (int layer = 0; layer < kNumLayers; ++layer) {
    ASSERT_TRUE(loader_->Follow(id, layer).ok());
    EXPECT_GT(layers_in(lane_.followed().back()), layer);
  }
  EXPECT_TRUE(End(id).ok());
  std::vector<int> layers;
  for (const uint64_t bytes : lane_.followed()) layers.push_back(layers_in(bytes));
  EXPECT_EQ(layers, (std::vector<int>{1, 2, 4, 8, 16, kNumLayers}));
}

}  // namespace
}  // namespace rootstock
