// Residual + RMSNorm in bf16 of long steps: a block a row, which it keeps in registers.
#pragma once

#include "kernels/norm/norm_plain.cuh"

namespace rootstock::kernels::cuda {

constexpr int kNormRun = 8 * kNormThreads;  // columns that a block's threads hold at a time

// grid: a block for each token, or for each of args.rows; n ≤ kRuns · kNormRun, a multiple of 8.
template <int kRuns>
__global__ void __launch_bounds__(kNormThreads, 8 / kRuns) AddNormLongKernel(AddNormArgs args) {
  GridLaunchDependents();
  const int token = args.rows == nullptr ? blockIdx.x : args.rows[blockIdx.x];
  const size_t row = static_cast<size_t>(token) * args.n;
  float* residual = args.residual + row;
  const auto* delta = static_cast<const __nv_bfloat16*>(args.delta);
  float x[kRuns][8];
  uint4 added[kRuns];
  GridDependencyWait();
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    const int column = i * kNormRun + 8 * threadIdx.x;
    if (column >= args.n) continue;
    added[i] = {};
    if (delta != nullptr) added[i] = *reinterpret_cast<const uint4*>(delta + row + column);
    Load8(residual + column, x[i]);
  }
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    const int column = i * kNormRun + 8 * threadIdx.x;
    if (column >= args.n) continue;
    float add[8];
    Unpack8(added[i], add);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      x[i][c] += add[c];
      squares += x[i][c] * x[i][c];
    }
    if (delta != nullptr && args.rows == nullptr) Store8(residual + column, x[i]);
  }
  const float inverse = rsqrtf(BlockSum(squares) / static_cast<float>(args.n) + args.eps);
  auto* out = static_cast<__nv_bfloat16*>(args.out) + static_cast<size_t>(blockIdx.x) * args.n;
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    const int column = i * kNormRun + 8 * threadIdx.x;
    if (column >= args.n) continue;
    float weight[8];
    Load8(args.weight + column, weight);
#pragma unroll
    for (int c = 0; c < 8; ++c) x[i][c] = weight[c] * (x[i][c] * inverse);
    Store8(out + column, x[i]);
  }
}

}  // namespace rootstock::kernels::cuda
