// Loads by way of the host cache, on the host's processor.
#include "worker/runtime/tier_loader.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layout/adapter_image.h"
#include "common/lora/canonical.h"
#include "worker/device/cpu_copy_lane.h"
#include "worker/device/cpu_device.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
extern "C" size_t __sanitizer_get_current_allocated_bytes();
#endif

namespace rootstock {
namespace {

constexpr uint32_t kNumPages = 64;

ModelSpec SmallModel() {
  ModelSpec spec;
  spec.num_layers = 3;
  spec.hidden_size = 16;
  spec.ffn_size = 32;
  spec.num_heads = spec.num_kv_heads = 2;
  spec.head_dim = 8;
  spec.vocab_size = 64;
  return spec;
}

class TierLoaderTest : public testing::Test {
 protected:
  static constexpr uint32_t kPageBytes = 512;

  // As many adapters of MakeContent fit the host cache.
  explicit TierLoaderTest(uint64_t host_adapters = 2) {
    const uint64_t pages = Layout().num_pages();
    cache_ = std::make_unique<HostCache>(
        *HostBlocks::Create(lane_, kPageBytes, host_adapters * pages * kPageBytes));
    slab_ = *Slab::Create(device_, {kNumPages, kPageBytes, 4});
    LoaderParts parts{spec_, tp_, 0, DType::kF32, kPageBytes, &lane_, cache_.get(), {}, 2};
    parts.read = [this](const Digest& digest, const BlobSink& sink) { return Read(digest, sink); };
    loader_ = std::make_unique<TierLoader>(std::move(parts));
    loader_->SetSlab(slab_.get());
    loader_->NotifyWhenDone([this] {
      std::lock_guard lock(mutex_);
      changed_.notify_all();
    });
  }
  ~TierLoaderTest() override { loader_ = nullptr; }

  LoraSpec Lora() const {
    LoraSpec lora;
    for (const int layer : {0, 2}) lora.modules.push_back({layer, Module::kQ, 2, 0.5f});
    return lora;
  }
  AdapterLayout Layout() const {
    return *AdapterLayout::Create(spec_, Lora(), tp_, LoraSharding::kReplicated, DType::kF32,
                                  kPageBytes);
  }
  // Registers content of numbers that depend on `seed`.
  Digest MakeContent(int seed) {
    std::vector<LoraWeights> weights(2);
    for (LoraWeights& w : weights) {
      for (std::vector<uint8_t>* part : {&w.a, &w.b}) {
        part->resize(2 * 16 * sizeof(float));
        for (size_t i = 0; i < 32; ++i) {
          const float value = static_cast<float>(seed * 100 + static_cast<int>(i));
          std::memcpy(part->data() + i * sizeof(float), &value, sizeof(float));
        }
      }
    }
    const std::string bytes = EncodeCanonical(Lora(), weights, spec_);
    std::lock_guard lock(mutex_);
    contents_[Sha256Of(bytes)] = bytes;
    return Sha256Of(bytes);
  }
  absl::Status Read(const Digest& digest, const BlobSink& sink) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !hold_reads_; });
    ++reads_;
    const auto it = contents_.find(digest);
    if (it == contents_.end()) return absl::NotFoundError("not on this node");
    const std::string content = it->second;
    const absl::Status verified = verified_;
    lock.unlock();
    RETURN_IF_ERROR(GiveAll(content, sink));
    return verified;
  }
  void HoldReads(bool hold) {
    std::lock_guard lock(mutex_);
    hold_reads_ = hold;
    changed_.notify_all();
  }
  LoadAdapter LoadOf(const Digest& digest, uint32_t first_page) const {
    LoadAdapter load{digest, Layout().id(), LoraSharding::kReplicated, {}};
    for (uint32_t p = 0; p < Layout().num_pages(); ++p)
      load.pages.push_back(PageId(first_page + p));
    return load;
  }
  absl::Status End(CommandId id) {
    std::unique_lock lock(mutex_);
    std::optional<absl::Status> outcome;
    changed_.wait(lock, [&] { return (outcome = loader_->OutcomeOf(id)).has_value(); });
    return *outcome;
  }
  absl::Status Load(const Digest& digest, uint32_t first_page) {
    const CommandId id(++commands_);
    loader_->Load(id, LoadOf(digest, first_page));
    const absl::Status outcome = End(id);
    if (outcome.ok()) adapter_ = loader_->Take(id);
    loader_->Forget(id);
    return outcome;
  }
  absl::Status Stage(const Digest& digest) {
    const CommandId id(++commands_);
    loader_->Stage(id, {digest, Layout().id(), LoraSharding::kReplicated, true});
    const absl::Status outcome = End(id);
    was_in_host_ = loader_->WasInHost(id);
    loader_->Forget(id);
    return outcome;
  }
  // Each row of the pages is what WriteAdapterRows puts there.
  void ExpectPagesHold(const Digest& digest, uint32_t first_page) {
    const AdapterLayout layout = Layout();
    std::vector<std::byte> image(layout.num_pages() * kPageBytes);
    std::vector<std::byte*> pages;
    for (uint32_t p = 0; p < layout.num_pages(); ++p) pages.push_back(&image[p * kPageBytes]);
    const std::string& bytes = contents_.at(digest);
    const auto content = CanonicalAdapter::Parse(
        {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, spec_);
    ASSERT_TRUE(WriteAdapterRows(*content, layout, 0, pages).ok());
    for (const RowPlace& row : layout.rows(0)) {
      EXPECT_EQ(std::memcmp(slab_->page(PageId(first_page + row.page)).data() + row.offset,
                            pages[row.page] + row.offset, 16 * sizeof(float)),
                0);
    }
  }

  const ModelSpec spec_ = SmallModel();
  const TpPlan tp_ = *MakeTpPlan(spec_, 1);
  CpuDevice device_{1};
  CpuCopyLane lane_;
  std::unique_ptr<HostCache> cache_;
  std::unique_ptr<Slab> slab_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Digest, std::string> contents_;
  bool hold_reads_ = false;
  int reads_ = 0;
  absl::Status verified_;  // what a read ends with, when all has come
  std::unique_ptr<TierLoader> loader_;
  std::unique_ptr<DeviceAdapter> adapter_;
  bool was_in_host_ = false;
  uint64_t commands_ = 0;
};

TEST_F(TierLoaderTest, WritesTheRowsAndReadsOnce) {
  const Digest a = MakeContent(1), b = MakeContent(2);
  ASSERT_TRUE(Load(a, 5).ok());
  ExpectPagesHold(a, 5);
  EXPECT_EQ(adapter_->pages().front(), PageId(5));
  ASSERT_TRUE(Load(b, 20).ok());
  ASSERT_TRUE(Load(a, 30).ok());
  ExpectPagesHold(b, 20);
  ExpectPagesHold(a, 30);
  EXPECT_EQ(reads_, 2);
  EXPECT_GT(loader_->stats().copied_bytes, 3u * 4 * 16 * sizeof(float));
}

TEST_F(TierLoaderTest, AStageMakesTheImageThatALoadTakes) {
  const Digest a = MakeContent(1);
  ASSERT_TRUE(Stage(a).ok());
  EXPECT_FALSE(was_in_host_);
  ASSERT_TRUE(Stage(a).ok());
  EXPECT_TRUE(was_in_host_);
  contents_.clear();
  ASSERT_TRUE(Load(a, 5).ok());
  contents_[a] = "";
  EXPECT_EQ(reads_, 1);
}

TEST_F(TierLoaderTest, OneReadForAllWhoWait) {
  const Digest a = MakeContent(1);
  HoldReads(true);
  loader_->Stage(CommandId(100), {a, Layout().id(), LoraSharding::kReplicated, true});
  loader_->Load(CommandId(101), LoadOf(a, 5));
  EXPECT_FALSE(loader_->OutcomeOf(CommandId(100)).has_value());
  HoldReads(false);
  EXPECT_TRUE(End(CommandId(100)).ok());
  EXPECT_TRUE(End(CommandId(101)).ok());
  EXPECT_EQ(reads_, 1);
  ExpectPagesHold(a, 5);
}

// What is found spoilt when it has come whole is in no tier, and on no page.
TEST_F(TierLoaderTest, F8NothingIsKeptOfWhatIsNotVerified) {
  const Digest a = MakeContent(1);
  verified_ = absl::DataLossError("spoilt");
  EXPECT_TRUE(absl::IsDataLoss(Stage(a)));
  EXPECT_TRUE(absl::IsDataLoss(Load(a, 5)));
  EXPECT_TRUE(cache_->List().empty());
  EXPECT_EQ(cache_->used_bytes(), 0u);
  verified_ = absl::OkStatus();
  EXPECT_TRUE(Load(a, 5).ok());
  EXPECT_EQ(reads_, 3);
  ExpectPagesHold(a, 5);
}

// FAULTS F8, F11: only that adapter fails, and it may be tried again.
TEST_F(TierLoaderTest, F8WhatIsGoneOrBadFailsAlone) {
  const Digest a = MakeContent(1), good = MakeContent(2);
  const std::string bytes = contents_[a];
  contents_[a].resize(bytes.size() / 2);
  EXPECT_FALSE(Load(a, 5).ok());
  EXPECT_FALSE(Stage(a).ok());
  contents_.erase(a);
  EXPECT_EQ(Load(a, 5).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Load(good, 20).ok());
  ExpectPagesHold(good, 20);
  contents_[a] = bytes;
  ASSERT_TRUE(Load(a, 5).ok());
  ExpectPagesHold(a, 5);
  const CommandId id(++commands_);
  LoadAdapter other = LoadOf(a, 40);
  other.layout_id += 1;
  loader_->Load(id, other);
  EXPECT_EQ(GetErrorDetail(End(id))->reason, Reason::kBaseMismatch);
  loader_->Forget(id);
  LoadAdapter few = LoadOf(a, 40);
  few.pages.pop_back();
  loader_->Load(id, few);
  EXPECT_EQ(GetErrorDetail(End(id))->field, "pages");
}

// A slow read holds up no load whose image is there.
TEST_F(TierLoaderTest, ImagesThatAreThereDoNotWaitForReads) {
  const Digest a = MakeContent(1);
  ASSERT_TRUE(Stage(a).ok());
  HoldReads(true);
  std::vector<CommandId> slow;
  for (int i = 0; i < 4; ++i) {
    slow.emplace_back(100 + i);
    loader_->Load(slow.back(), LoadOf(MakeContent(10 + i), 10 + 10 * i));
  }
  ASSERT_TRUE(Load(a, 1).ok());
  ExpectPagesHold(a, 1);
  HoldReads(false);
  for (const CommandId id : slow) EXPECT_TRUE(End(id).ok());
}

TEST_F(TierLoaderTest, WithoutRoomOnTheHostLoadsGoOn) {
  const Digest a = MakeContent(1), b = MakeContent(2), c = MakeContent(3);
  ASSERT_TRUE(Stage(a).ok() && Stage(b).ok());
  cache_->Pin(a, true);
  cache_->Pin(b, true);
  ASSERT_TRUE(Stage(c).ok());  // it stays on the disk
  EXPECT_EQ(cache_->List().size(), 2u);
  ASSERT_TRUE(Load(c, 5).ok());
  ExpectPagesHold(c, 5);
  EXPECT_EQ(cache_->List().size(), 2u);
}

TEST_F(TierLoaderTest, TakenEarlyWhileTheLoadGoesOn) {
  const Digest a = MakeContent(1);
  loader_->Load(CommandId(1), LoadOf(a, 5));
  const auto adapter = loader_->TakeEarly(CommandId(1));
  ASSERT_TRUE(adapter.ok());
  for (int layer = 0; layer < 3; ++layer) EXPECT_TRUE(loader_->Follow(CommandId(1), layer).ok());
  ExpectPagesHold(a, 5);
  EXPECT_TRUE(End(CommandId(1)).ok());
  loader_->Load(CommandId(2), LoadOf(Sha256Of("absent"), 15));
  EXPECT_EQ(loader_->TakeEarly(CommandId(2)).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(TierLoaderTest, ForgetAllWaitsForWhatRunsAndDropsTheRest) {
  HoldReads(true);
  for (int i = 0; i < 6; ++i) loader_->Load(CommandId(1 + i), LoadOf(MakeContent(i), 1 + 8 * i));
  HoldReads(false);
  loader_->ForgetAll();
  const int reads = reads_;
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(loader_->OutcomeOf(CommandId(1 + i)).has_value());
  EXPECT_EQ(reads_, reads);
  ASSERT_TRUE(Load(MakeContent(7), 5).ok());
}

// Every build thread and the copying one at once, over a cache of two images.
TEST_F(TierLoaderTest, AnyNumberUnderWayAtOnce) {
  constexpr int kRounds = 20, kAtOnce = 6;
  std::vector<Digest> contents;
  for (int i = 0; i < 8; ++i) contents.push_back(MakeContent(i));
  for (int round = 0; round < kRounds; ++round) {
    std::vector<CommandId> loads, stages;
    for (int i = 0; i < kAtOnce; ++i) {
      const Digest& digest = contents[(round + 3 * i) % contents.size()];
      loads.emplace_back(++commands_);
      loader_->Load(loads.back(), LoadOf(digest, 1 + i * Layout().num_pages()));
      stages.emplace_back(++commands_);
      loader_->Stage(stages.back(), {contents[(round + i) % contents.size()], Layout().id(),
                                     LoraSharding::kReplicated, true});
      cache_->Pin(digest, (round + i) % 2 == 0);
    }
    if (round % 7 == 6) {
      loader_->ForgetAll();
      continue;
    }
    for (const CommandId id : loads) EXPECT_TRUE(End(id).ok());
    for (const CommandId id : stages) EXPECT_TRUE(End(id).ok());
    for (int i = 0; i < kAtOnce; ++i) {
      ExpectPagesHold(contents[(round + 3 * i) % contents.size()], 1 + i * Layout().num_pages());
    }
    for (const CommandId id : stages) loader_->Forget(id);
    for (const CommandId id : loads) loader_->Forget(id);
    cache_->TakeChanges();
  }
}

// FAULTS I4.
TEST_F(TierLoaderTest, I4TheHostHoldsItsBudgetHoweverManyCome) {
  const uint64_t budget = uint64_t{2} * Layout().num_pages() * kPageBytes;
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(Load(MakeContent(i), 5).ok());
    EXPECT_LE(cache_->used_bytes(), budget);
  }
  EXPECT_EQ(cache_->used_bytes(), budget);
  for (int i = 0; i < 50; ++i) cache_->Drop(MakeContent(i));
  EXPECT_EQ(cache_->used_bytes(), 0u);
}

// In use on the heap. A sanitizer has a heap of its own.
size_t HeldBytesNow() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return __sanitizer_get_current_allocated_bytes();
#else
  return mallinfo2().uordblks + mallinfo2().hblkhd;
#endif
}

// FAULTS I4: nor does anything else stay of a load, on the device's side or the host's.
TEST_F(TierLoaderTest, I4NoMemoryStaysOfLoadsThatAreOver) {
  constexpr int kWarm = 100, kLoads = 500;
  std::vector<Digest> contents;
  for (int i = 0; i < kWarm + kLoads; ++i) contents.push_back(MakeContent(i));
  const auto load = [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      ASSERT_TRUE(Stage(contents[i]).ok() && Load(contents[i], 5).ok());
      cache_->TakeChanges();
    }
    adapter_ = nullptr;
  };
  load(0, kWarm);
  const size_t before = HeldBytesNow();
  ASSERT_GT(before, 0u);
  load(kWarm, kWarm + kLoads);
  EXPECT_LT(HeldBytesNow(), before + kLoads * 64);
}

}  // namespace
}  // namespace rootstock
