// Ops on the host's processor.
#pragma once

#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/lora/lora.h"
#include "worker/device/device.h"
#include "worker/ops/ops.h"

namespace rootstock {

// f32 throughout; every output is computed by one thread, so the number of threads changes no bit
// of the kernels of our own. *Step thread only.*
class CpuOps : public Ops {
 public:
  // threads: of every parallel loop.
  CpuOps(int threads, const PagedMemory& memory) : threads_(threads), memory_(memory) {}

  absl::Status BeginStep(const StepView& step) override;
  void Embed(const Matrix& table, int first_id, float* out) override;
  void AddRmsNorm(float* residual, const float* delta, const float* weight, float eps, int n,
                  std::span<const int32_t> rows, float* out) override;
  void Linear(const float* x, int m, const Matrix& w, const float* bias, float* out) override;
  void RopeWriteKv(int layer, const AttentionShape& shape, const RopeAndKv& rope,
                   float* qkv) override;
  void Attention(int layer, const AttentionShape& shape, const float* qkv, float* out) override;
  void SiluMul(const float* gate_up, int n, float* out) override;
  std::span<float> LoraShrink(int layer, std::span<const LoraTarget> targets, int in,
                              const float* x) override;
  void LoraExpand(int layer, std::span<const LoraTarget> targets, int width, float* out) override;
  absl::StatusOr<OpsStepStats> EndStep() override;

 private:
  int tokens() const { return static_cast<int>(step_.token_ids.size()); }
  size_t LayerOffset(int layer, const AttentionShape& shape) const;
  void Gemm(const float* x, int m, const float* w, int n, int k, int out_stride, float* out);
  // Parts of the groups that adapt a target at this layer, v not yet placed.
  void CollectParts(int layer, std::span<const LoraTarget> targets);

  const int threads_;
  const PagedMemory memory_;
  StepView step_;
  OpsStepStats stats_;
  absl::Status error_;
  std::vector<uint32_t> token_pages_;  // [tokens]
  std::vector<kernels::AttentionRow> attention_rows_;
  std::vector<float> scratch_;            // packed rows of x, or a widened tile of weights
  std::vector<kernels::LoraPart> parts_;  // of the last LoraShrink
  std::vector<float> lora_v_;
};

}  // namespace rootstock
