// The end of a row-parallel projection in one kernel: its LoRA, the sum over ranks, residual and
// norm. For steps of few tokens on GPUs that reach each other's memory.
#pragma once

#include "kernels/collective/all_reduce_cuda.h"
#include "kernels/collective/sum_norm_rows.h"
#include "kernels/lora/lora_cuda.h"

namespace rootstock::kernels::cuda {

constexpr int kMostSumNormTokens = 64;

// Device memory; rows aligned to 16 bytes.
struct SumNormArgs {
  Type type = Type::kBF16;        // of delta and out
  float* residual = nullptr;      // [tokens, n]
  const void* delta = nullptr;    // [tokens, n], this rank's part of the sum
  const float* weight = nullptr;  // [n]
  float eps = 0.0f;
  int n = 0;
  int tokens = 0;
  void* out = nullptr;  // [tokens, n]
};

// LoRA that this rank adds to its part before the sum; a count of 0: none. One target each.
struct SumNormLora {
  LoraStep step;
  LoraTargets whole;  // adapters whose B has all features
  LoraTargets slice;  // those of which this rank's B has some; columns and features in eights
};

// Whether SumAddRmsNorm takes rows of n elements, whatever the step.
bool TakesSumNorm(const PeerGroup& group, Type type, int n);

// sum[t] = Σ_rank round(delta_rank[t] + LoRA_rank[t]), rounded as AllReduceSum does;
// residual[t] += sum[t]; out[t] = weight · residual[t] / sqrt(mean(residual[t]²) + eps).
// tokens ≤ kMostSumNormTokens. A row's bits depend on nothing else in the step. Every rank calls it
// as it would AllReduceSum; the residual is read early, as AddRmsNorm's.
cudaError_t SumAddRmsNorm(const PeerGroup& group, const SumNormArgs& args, const SumNormLora& lora,
                          cudaStream_t stream);

}  // namespace rootstock::kernels::cuda
