// Ops on the host's processor.
#pragma once

#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/lora/lora.h"
#include "worker/device/device.h"
#include "worker/ops/ops.h"
#include "worker/ops/token_sampler.h"

namespace rootstock {

// f32 throughout; every output is computed by one thread, so the number of threads changes no bit
// of the kernels of our own. *Step thread only.*
class CpuOps : public Ops {
 public:
  // threads: of every parallel loop. sampler: borrowed; null where no step asks for a last token.
  CpuOps(int threads, const PagedMemory& memory, const TokenSampler* sampler = nullptr)
      : threads_(threads), memory_(memory), sampler_(sampler) {}

  DType activation_type() const override { return DType::kF32; }
  absl::Status Prepare(const OpsLimits& limits) override {
    limits_ = limits;
    return absl::OkStatus();
  }
  absl::Status Record(const std::function<absl::Status()>&) override { return absl::OkStatus(); }
  absl::Status WarmUp(const std::function<absl::Status()>&) override { return absl::OkStatus(); }
  absl::Status BeginStep(const StepView& step) override;
  int num_tokens() const override { return static_cast<int>(step_.token_ids.size()); }
  int num_outputs() const override { return static_cast<int>(step_.output_tokens.size()); }
  int exchange_width() const override { return 0; }  // no step is replayed
  absl::Status Run(const std::function<absl::Status()>& forward) override { return forward(); }
  void Embed(const Matrix& table, int first_id, float* residual) override;
  void AddRmsNorm(float* residual, void* delta, const LoraDelta& lora, const float* weight,
                  float eps, int n, bool outputs_only, void* out) override;
  void Linear(const void* x, const Matrix& w, const float* bias, void* out) override;
  void Head(const void* x, const Matrix& w, float* logits) override;
  void JoinLogits(std::span<const int> widths, const float* parts, float* logits) override;
  void RopeWriteKv(int layer, const AttentionShape& shape, const RopeAndKv& rope,
                   const LoraDelta& lora, void* qkv) override;
  void Attention(int layer, const AttentionShape& shape, const void* qkv, void* out) override;
  void SiluMul(void* gate_up, const LoraDelta& lora, int n, void* out) override;
  LoraDelta LoraShrink(int layer, std::span<const LoraTarget> targets, int in,
                       const void* x) override;
  LoraExchange LoraPack(const LoraDelta& lora) override;
  void LoraUnpack(const LoraDelta& lora, const LoraExchange& exchange) override;
  void LoraExpand(const LoraDelta& lora, int width, void* out) override;
  absl::StatusOr<OpsStepStats> EndStep() override;

  // out [m, w.rows] = x [m, w.cols] · wᵀ + bias [w.rows] (null: none).
  void MatMul(const float* x, int m, const Matrix& w, const float* bias, float* out);

 private:
  // An adapter at a module in this step. `part` has the components held here until LoraUnpack gives
  // it all of them.
  struct LoraUse {
    kernels::LoraPart part;
    Module module = Module::kQ;
    int lora_rank = 0;  // over all ranks
    bool fully_sharded = false;
  };

  size_t LayerOffset(int layer, const AttentionShape& shape) const;
  void Gemm(const float* x, int m, const float* w, int n, int k, int out_stride, float* out);
  // The groups that adapt a target at this layer, v not yet placed.
  void CollectUses(int layer, std::span<const LoraTarget> targets);
  // Floats of a token in one rank's piece of v.
  int PieceFloats(const LoraUse& use, bool gather) const;

  const int threads_;
  const PagedMemory memory_;
  const TokenSampler* const sampler_;
  OpsLimits limits_;
  StepView step_;
  OpsStepStats stats_;
  absl::Status error_;
  std::vector<int32_t> token_ids_;     // [tokens], all explicit
  std::vector<uint32_t> token_pages_;  // [tokens]
  std::vector<kernels::AttentionRow> attention_rows_;
  std::vector<float> scratch_;            // packed rows of x, or a widened tile of weights
  std::vector<LoraUse> uses_;             // of the last LoraShrink
  std::vector<kernels::LoraPart> parts_;  // of them, for a kernel
  std::vector<float> lora_v_;
  std::vector<float> exchange_;
};

}  // namespace rootstock
