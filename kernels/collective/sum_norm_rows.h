// How SumAddRmsNorm (sum_norm_cuda.h) is cut into launches, which all ranks do alike.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/types.h"

namespace rootstock::kernels::cuda {

constexpr int kMostSumNormColumns = 16384;
constexpr int kWarpColumns = 256;
constexpr int kMostRowWarps = kMostSumNormColumns / kWarpColumns;

// How many rows a launch has at most. A call of more is several launches, which have to be the same
// on every rank: the ranks of a group take the least of what their GPUs find. That follows from the
// SMs and from how many lie together for a cluster, which differs among GPUs of one model too.
struct SumNormRows {
  std::array<int32_t, 4 * kMostRowWarps> most = {};  // 0: takes none

  // Where those of n elements are.
  static size_t At(Type type, bool with_lora, int n) {
    const size_t kernel = 2 * static_cast<size_t>(type) + (with_lora ? 1 : 0);
    return kernel * kMostRowWarps + (n - 1) / kWarpColumns;
  }
  int Most(Type type, bool with_lora, int n) const { return most[At(type, with_lora, n)]; }
};
// What finds room at once on the current GPU, for each of `sharing` ranks of a group of `size`.
SumNormRows FindSumNormRows(int size, int sharing = 1);

}  // namespace rootstock::kernels::cuda
