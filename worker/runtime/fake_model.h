// Test peer: a decoder whose logits are a hash of the tokens it finds through the page table, and
// of the adapters of the token.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "worker/device/cpu_device.h"
#include "worker/ops/host_sampler.h"
#include "worker/runtime/fake_loader.h"
#include "worker/runtime/step_model.h"

namespace rootstock {

// *Step thread only.*
class FakeModel : public StepModel {
 public:
  static constexpr int kVocab = 64;
  static constexpr uint32_t kPageTokens = 4;
  static constexpr int32_t kPoison = 63;  // its logits are NaN

  explicit FakeModel(int tp_rank, uint32_t num_pages = 64);
  const StepModelInfo& info() const override { return info_; }
  std::optional<DeviceMemoryUse> memory() override { return memory_use; }
  absl::Status Prepare(const ModelLimits& limits, int max_logprobs) override;
  TokenSampler& sampler() override { return sampler_; }
  bool asynchronous() const override { return leaves_running; }
  uint64_t Mark() override { return device_.Mark(); }
  absl::Status Wait(uint64_t mark) override { return device_.Wait(mark); }
  std::optional<DeviceSpan> SpanOf(uint64_t) override { return span; }
  void NotifyWhenDone(std::function<void()> done) override { done(); }
  absl::StatusOr<const float*> Forward(const ForwardBatch& batch) override;
  // Counts each segment of the batch once in both kernels.
  const ForwardStats& last_forward() const override { return stats_; }
  AdapterLoader& loader() override { return loader_; }

  // The logits after `tokens`, the last of which runs with `adapters` (first page, scale).
  static std::vector<float> Logits(const std::vector<int32_t>& tokens,
                                   const std::vector<std::pair<uint64_t, float>>& adapters = {});

  bool leaves_running = false;
  std::optional<DeviceMemoryUse> memory_use;
  std::optional<DeviceSpan> span;  // of every step
  int forwards = 0;
  int max_outputs = 0;
  std::vector<int> outputs_seen;  // logit rows of each forward
  FakeLoader& fake_loader() { return loader_; }

 private:
  const int tp_rank_;
  StepModelInfo info_;
  std::vector<int32_t> slab_;  // token by page and offset: the KV
  std::vector<float> logits_;
  HostSampler sampler_;
  CpuDevice device_{1};
  FakeLoader loader_{info_.geometry, device_};
  ForwardStats stats_;
};

}  // namespace rootstock
