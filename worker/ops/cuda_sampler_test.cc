// CudaSampler beside HostSampler: what its kernels' own tests don't reach.
#include "worker/ops/cuda_sampler.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "worker/ops/host_sampler.h"

namespace rootstock {
namespace {

constexpr int kVocab = 1000;
constexpr int kSlots = 8;

class CudaSamplerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CudaDevice::Create(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    sampler_ = std::make_unique<CudaSampler>(*device_);
  }

  void Prepare(int max_logprobs) {
    const SamplerLimits limits{kSlots, kSlots, max_logprobs, kVocab};
    ASSERT_TRUE(sampler_->Prepare(limits).ok());
    ASSERT_TRUE(host_.Prepare(limits).ok());
    std::normal_distribution<float> normal(0.0f, 3.0f);
    logits_.resize(kSlots * kVocab);
    for (float& x : logits_) x = normal(random_);
    const size_t bytes = logits_.size() * sizeof(float);
    on_device_ = *device_->Allocate(bytes, "logits");
    std::memcpy(*device_->Stage(on_device_.data(), bytes), logits_.data(), bytes);
    ASSERT_TRUE(device_->WriteBack().ok());
  }

  std::vector<int32_t> RandomIds(size_t count) {
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random_() % (kVocab / 4));
    return ids;
  }

  void ExpectSameAsHost(const std::vector<SampleOrder>& orders) {
    ASSERT_TRUE(sampler_->Sample(on_device_.as<const float>(), orders).ok());
    ASSERT_TRUE(host_.Sample(logits_.data(), orders).ok());
    const auto got = sampler_->Collect();
    ASSERT_TRUE(got.ok()) << got.status();
    const auto want = host_.Collect();
    ASSERT_EQ(got->size(), orders.size());
    for (size_t i = 0; i < orders.size(); ++i) {
      SCOPED_TRACE(i);
      const TokenLogprob &a = (*got)[i].logprob, &b = (*want)[i].logprob;
      if (!orders[i].keep_logits) {
        EXPECT_EQ((*got)[i].token, (*want)[i].token);
      }
      EXPECT_EQ((*got)[i].logits, (*want)[i].logits);
      EXPECT_NEAR(a.logprob, b.logprob, 1e-4);
      EXPECT_EQ(a.rank, b.rank);
      ASSERT_EQ(a.top.size(), b.top.size());
      for (size_t t = 0; t < b.top.size(); ++t) {
        EXPECT_EQ(a.top[t].first, b.top[t].first);
        EXPECT_NEAR(a.top[t].second, b.top[t].second, 1e-4);
      }
    }
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<CudaSampler> sampler_;
  HostSampler host_;
  std::mt19937 random_{1};
  std::vector<float> logits_;
  DeviceBuffer on_device_;
};

// Several times what the ids' memory holds, pieces that don't divide it, one longer than it, all
// enqueued while the device is busy with those before.
TEST_F(CudaSamplerTest, CountsManyTokensWithoutWaiting) {
  Prepare(0);
  SamplingParams penalised;
  penalised.temperature = 0;
  penalised.frequency_penalty = 0.02f;
  penalised.repetition_penalty = 1.4f;
  std::vector<SampleOrder> orders(kSlots);
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    sampler_->Begin(slot, true);
    host_.Begin(slot, true);
    orders[slot].params = &penalised;
    orders[slot].slot = slot;
  }
  const size_t pieces[] = {1, 2047, 8192, 31, 2 * PinnedIds::kCapacity + 5, 0, 4099, 30000};
  for (int round = 0; round < 3; ++round) {
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      const std::vector<int32_t> ids = RandomIds(pieces[(slot + round) % std::size(pieces)]);
      const bool outputs = (slot + round) % 2 == 1;
      sampler_->Count(slot, ids, outputs);
      host_.Count(slot, ids, outputs);
    }
    ExpectSameAsHost(orders);
  }
}

TEST_F(CudaSamplerTest, MoreTopEntriesThanTheKernelFinds) {
  Prepare(600);
  SamplingParams params;
  params.temperature = 0;
  std::vector<SampleOrder> orders(kSlots);
  const int tops[kSlots] = {600, 0, -1, 128, 129, 5, 400, 3};
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    orders[slot].params = &params;
    orders[slot].slot = slot;
    orders[slot].num_top = tops[slot];
  }
  orders[5].given = 17;
  orders[6].given = 18;
  orders[7] = {.params = &params, .slot = 7, .keep_logits = true};
  ExpectSameAsHost(orders);
}

// When a group attaches anew its pages hold what was free.
TEST_F(CudaSamplerTest, PreparedAnewItNeverHoldsTwice) {
  const auto free = device_->FreeBytes();
  ASSERT_TRUE(free.ok()) << free.status();
  constexpr int kBigVocab = 1 << 20;
  SamplerLimits limits{0, 1, 0, kBigVocab};
  limits.num_slots = static_cast<int>(*free / 5 * 3 / (kBigVocab * sizeof(uint32_t)));
  for (const int more : {0, 0, 1, -2}) {
    limits.num_slots += more;
    const absl::Status prepared = sampler_->Prepare(limits);
    EXPECT_TRUE(prepared.ok()) << prepared;
  }
}

}  // namespace
}  // namespace rootstock
