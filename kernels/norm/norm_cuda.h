// Embedding, residual addition and RMSNorm on the GPU.
#pragma once

#include "kernels/lora/lora_cuda.h"

namespace rootstock::kernels::cuda {

struct EmbedArgs {
  Type type = Type::kBF16;      // of the table
  const void* table = nullptr;  // [table_rows, n]
  int first_id = 0;
  int table_rows = 0;            // ids outside [first_id, first_id + table_rows) become 0
  const int32_t* ids = nullptr;  // [tokens]; -1 - slot: last_tokens[slot]
  const int32_t* last_tokens = nullptr;
  int tokens = 0;
  int n = 0;
  float* out = nullptr;  // [tokens, n]
};
void Embed(const EmbedArgs& args, cudaStream_t stream);

// delta[t] += LoRA (if targets.count); residual[t] += delta[t];
// out[i] = weight · residual[t] / sqrt(mean(residual[t]²) + eps), t = rows[i].
// With a delta the residual may be read before the kernel ahead has ended, so that one must not
// write it, nor may one ahead of it that did still run: between two calls with one residual lies a
// kernel that waits before it lets its dependents start (the linear layer's does).
struct AddNormArgs {
  Type type = Type::kBF16;        // of delta and out
  float* residual = nullptr;      // [tokens, n]
  void* delta = nullptr;          // [tokens, n]; null: nothing is added. May become delta + LoRA
  const float* weight = nullptr;  // [n]
  float eps = 0.0f;
  int n = 0;
  int tokens = 0;
  const int32_t* rows = nullptr;  // [num_rows], device; null: every token. Then only those rows are
  int num_rows = 0;               // normalised, and residual need not be written back
  void* out = nullptr;            // [num_rows or tokens, n]
};
void AddRmsNorm(const AddNormArgs& args, const LoraStep& lora, const LoraTargets& targets,
                cudaStream_t stream);

}  // namespace rootstock::kernels::cuda
