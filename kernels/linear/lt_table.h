// Which of cuBLASLt's algorithms projections of known models take, as measured once on an H200.
#pragma once

#include <compare>
#include <span>

namespace rootstock::kernels::cuda {

// An algorithm by the numbers that cuBLASLt knows it by (CUBLASLT_ALGO_CONFIG_…).
struct LtAlgo {
  int id = 0;
  int tile = 0;
  int stages = 0;
  int inner_shape = 0;
  int cluster = 0;
  int split_k = 1;
  int reduction = 0;
  int swizzle = 0;
  int custom = 0;
  auto operator<=>(const LtAlgo&) const = default;
};

// For bf16 [m, k] · [n, k]ᵀ to bf16 of all m of a range, of which this is the largest.
struct LtEntry {
  int n = 0;
  int k = 0;
  int m = 0;
  LtAlgo algo;
};
std::span<const LtEntry> LtTable();

// Null: not in the table.
const LtAlgo* FindLtAlgo(int n, int k, int m);

}  // namespace rootstock::kernels::cuda
