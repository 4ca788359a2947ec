// LoRA by cuBLASLt alone, over all adapters of the batch: what a site would cost without kernels.
#pragma once

#include <memory>
#include <string>

#include "kernels/linear/cuda_test_data.h"
#include "kernels/linear/lt_matmul.h"
#include "kernels/lora/lora_cuda.h"

namespace rootstock {

// v [tokens, targets · adapters · r] = x · Aᵀ of all adapters; v of other adapters than the token's
// becomes 0; y += v · Bᵀ, a GEMM a target. Owns x, v, y; borrows weights (any bf16 values), of
// which layers take different parts. *One thread.*
class UnfusedLora {
 public:
  UnfusedLora(const kernels::cuda::LoraTargets& targets, int tokens, int adapters, int lora_rank,
              const std::byte* weights, size_t weight_bytes, kernels::cuda::LtMatmul* lt);
  ~UnfusedLora();
  UnfusedLora(const UnfusedLora&) = delete;
  UnfusedLora& operator=(const UnfusedLora&) = delete;

  // Empty, or the error.
  std::string Run(int layer, cudaStream_t stream);

 private:
  struct Expand;

  std::string MakeExpand(int target);
  const std::byte* Weights(int layer, size_t offset) const;

  const kernels::cuda::LoraTargets targets_;
  const int tokens_, adapters_, lora_rank_;
  const std::byte* const weights_;
  const size_t weight_bytes_;
  kernels::cuda::LtMatmul* const lt_;
  int columns_ = 0;         // of v
  int width_ = 0;           // of y
  size_t layer_bytes_ = 0;  // of A and B
  std::unique_ptr<kernels::cuda::Buffer> x_, v_, y_, workspace_;
  cublasLtHandle_t handle_ = nullptr;
  std::unique_ptr<Expand> expands_[kernels::cuda::kMaxLoraTargets];
  std::string error_;
};

}  // namespace rootstock
