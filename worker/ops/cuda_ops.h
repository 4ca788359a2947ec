// Ops on a GPU.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention/attention_cuda.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/lora/lora_exchange.h"
#include "worker/device/cuda_device.h"
#include "worker/ops/cuda_step.h"
#include "worker/ops/ops.h"
#include "worker/ops/token_sampler.h"

namespace rootstock {

// Decode steps replay a graph of the next larger batch, one without LoRA and one with it; adapters,
// pages and lengths are data. Other steps are launched operator by operator. *Step thread only.*
class CudaOps : public Ops {
 public:
  // Borrows device and sampler.
  CudaOps(CudaDevice& device, DType compute_type, const PagedMemory& memory,
          const TokenSampler& sampler, std::shared_ptr<kernels::cuda::Linear> linear);
  ~CudaOps() override;

  DType activation_type() const override { return compute_type_; }
  absl::Status Prepare(const OpsLimits& limits) override;
  absl::Status Record(const std::function<absl::Status()>& forward) override;
  absl::Status WarmUp(const std::function<absl::Status()>& forward) override;
  uint64_t recorded_bytes() const override { return graph_bytes_; }
  absl::Status BeginStep(const StepView& step) override;
  int num_tokens() const override { return sizes_.tokens; }
  int num_outputs() const override { return sizes_.outputs; }
  int exchange_width() const override { return sizes_.exchange; }
  absl::Status Run(const std::function<absl::Status()>& forward) override;
  void Embed(const Matrix& table, int first_id, float* residual) override;
  void AddRmsNorm(float* residual, void* delta, const LoraDelta& lora, const float* weight,
                  float eps, int n, bool outputs_only, void* out) override;
  bool SumAddRmsNorm(float* residual, const void* delta, const LoraDelta& lora, const float* weight,
                     float eps, int n, bool outputs_only, void* out) override;
  void Linear(const void* x, const Matrix& w, const float* bias, void* out) override;
  void Head(const void* x, const Matrix& w, float* logits) override;
  void JoinLogits(std::span<const int> widths, const float* parts, float* logits) override;
  void RopeWriteKv(int layer, const AttentionShape& shape, const RopeAndKv& rope,
                   const LoraDelta& lora, void* qkv) override;
  void Attention(int layer, const AttentionShape& shape, const void* qkv, void* out) override;
  void SiluMul(void* gate_up, const LoraDelta& lora, int n, void* out) override;
  bool LinearSiluMul(const void* x, const Matrix& w, const LoraDelta& lora, int n, void* gate_up,
                     void* out) override;
  LoraDelta LoraShrink(int layer, std::span<const LoraTarget> targets, int in,
                       const void* x) override;
  LoraExchange LoraPack(const LoraDelta& lora) override;
  void LoraUnpack(const LoraDelta& lora, const LoraExchange& exchange) override;
  void LoraExpand(const LoraDelta& lora, int width, void* out) override;
  absl::StatusOr<OpsStepStats> EndStep() override;

 private:
  struct Graph {
    StepSizes sizes;
    cudaGraphExec_t exec = nullptr;
  };

  struct PendingShrink {
    kernels::cuda::LoraTargets targets;
    kernels::cuda::LoraTargets expand;
    const void* x = nullptr;
  };

  void DropGraphs();
  absl::Status BeginPads(const StepSizes& sizes);
  // Runs a step of pads alone as it is, so that libraries and kernels are set up.
  absl::Status RunPads(const StepSizes& sizes, const std::function<absl::Status()>& forward);
  // After RunPads of the same sizes.
  absl::Status Record(const StepSizes& sizes, const std::function<absl::Status()>& forward);
  // As kernels see them: a view's layers follow those of the view before.
  kernels::cuda::LoraTargets TargetsOf(const LoraDelta& lora, LoraView view) const;
  // What consumers of a projection have left to add.
  kernels::cuda::LoraTargets LeftOf(const LoraDelta& lora) const;
  // Whether GEMMs of this step add LoRA where they can.
  bool ExpandsInGemms() const;
  // Whether fully sharded adapters' v is exchanged by an operator, whatever the lora_ranks.
  bool ExchangesItself(const StepSizes& sizes) const;
  // A token a row, each with an output, in order.
  static bool IsDecode(const StepView& step, const StepSizes& exact);
  // The smallest graph that a decode step fits, or null.
  const Graph* FindGraph(const StepSizes& exact) const;
  // Points the operators at a step of these sizes.
  absl::Status Enter(const StepSizes& sizes, int max_q_len);
  // With the shrink that waits for it: in the GEMM, behind one that lets it in, so that it costs no
  // more than its bytes, or else before it. Then the GEMM may add the expand.
  void MatMul(const void* x, int m, const Matrix& w, const float* bias, DType out_type, void* out);
  kernels::cuda::LinearArgs ArgsOf(const void* x, int m, const Matrix& w, const float* bias,
                                   DType out_type, void* out) const;
  void RunShrink(const PendingShrink& shrink, bool x_ready);
  // For the GEMM that expands it: before that one or, where SMs are free, beside it.
  void ShrinkFor(const PendingShrink& shrink, const kernels::cuda::LinearArgs& args,
                 kernels::cuda::LinearExpand* inside);
  kernels::cuda::PagedKv LayerKv(int layer, const AttentionShape& shape) const;
  // Keeps the first error of the step.
  void Check(const std::string& what, const std::string& error);

  CudaDevice& device_;
  const DType compute_type_;
  const kernels::cuda::Type type_;
  const PagedMemory memory_;
  const TokenSampler& sampler_;
  const std::shared_ptr<kernels::cuda::Linear> linear_;
  OpsLimits limits_;
  std::unique_ptr<CudaStep> step_;
  std::unique_ptr<kernels::cuda::PagedAttention> attention_;
  DeviceBuffer lora_v_, lora_exchange_;
  std::vector<Graph> graphs_;  // by rows, then by groups
  uint64_t graph_bytes_ = 0;

  StepSizes sizes_;        // of the launch
  int max_lora_rank_ = 0;  // of the step
  StepArrays arrays_;      // on the device
  kernels::cuda::LoraStep lora_;
  std::optional<PendingShrink> shrink_;  // goes with the next Linear
  bool expanded_ = false;                // by the GEMM that the last LoraShrink went with
  kernels::cuda::LoraExchangeStep exchange_;
  const Graph* graph_ = nullptr;  // of this step
  bool every_token_has_output_ = false;
  OpsStepStats stats_;
  absl::Status error_;
};

}  // namespace rootstock
