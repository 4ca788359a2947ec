// Residual addition and RMSNorm.
#pragma once

#include <cstdint>

namespace rootstock::kernels {

// residual[t] += delta[t]; out[i] = weight · residual[t] / sqrt(mean(residual[t]²) + eps), t =
// rows[i].
struct NormArgs {
  float* residual = nullptr;      // [tokens, n]
  const float* delta = nullptr;   // [tokens, n]; null: nothing is added
  const float* weight = nullptr;  // [n]
  float eps = 0.0f;
  int n = 0;
  int tokens = 0;
  const int32_t* rows = nullptr;  // [num_rows]; null: every token
  int num_rows = 0;
  float* out = nullptr;  // [num_rows or tokens, n]
};

void AddRmsNorm(const NormArgs& args, int threads);

}  // namespace rootstock::kernels
