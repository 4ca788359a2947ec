// Batched LoRA with each adapter's true lora_rank.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rootstock::kernels {

constexpr size_t kLoraRowUnit = 128;  // bytes that one step of a row offset stands for

// One adapter at one module, with the tokens that run with it. Rows are f32.
struct LoraPart {
  const uint32_t* a = nullptr;  // [lora_rank]: row r of A [lora_rank, in] at slab + 128 · a[r]
  const uint32_t* b = nullptr;  // [lora_rank]: row r of Bᵀ [lora_rank, features] likewise
  int lora_rank = 0;
  float scale = 0.0f;
  const int32_t* tokens = nullptr;  // [num_tokens]
  const float* scales = nullptr;    // [num_tokens]
  int num_tokens = 0;
  int column = 0;      // of the module's first output
  int features = 0;    // outputs of the module on this rank
  float* v = nullptr;  // [num_tokens, lora_rank]
};

// v[i][r] = A[r] · x[tokens[i]]; x [·, in].
void LoraShrink(const std::byte* slab, const LoraPart* parts, int num_parts, const float* x, int in,
                int threads);

// out[tokens[i]][column + c] += scale · scales[i] · Σ_r v[i][r] · Bᵀ[r][c]; out [·, width]. Parts
// add into a token in their order.
void LoraExpand(const std::byte* slab, const LoraPart* parts, int num_parts, float* out, int width,
                int threads);

}  // namespace rootstock::kernels
