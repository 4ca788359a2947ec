// Linear layers for few rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rootstock::kernels {

// out[m][n] = Σ_k x[m][k] · w[n][k] + bias[n], f32 sums; an output's bits do not depend on m.
struct LinearArgs {
  const float* x = nullptr;  // [m, k]
  int m = 0;
  const void* w = nullptr;  // [n, k], f32 or bf16
  bool bf16 = false;
  int n = 0;
  int k = 0;
  const float* bias = nullptr;  // [n]; null: none
  float* out = nullptr;         // [m, n]
};

constexpr int kMaxPackedRows = 64;
constexpr int kMaxDotRows = 4;

// m ≤ kMaxDotRows: bound by memory.
void LinearDot(const LinearArgs& args, int threads);
// m ≤ kMaxPackedRows. packed: scratch of kMaxPackedRows · k floats.
void LinearPacked(const LinearArgs& args, float* packed, int threads);

// out[i] = in[i], bf16 to f32.
void WidenBf16(const uint16_t* in, size_t n, float* out, int threads);

}  // namespace rootstock::kernels
