// What a GPU can do at best, measured by the bench that holds its figures against it.
#pragma once

#include <string>

namespace rootstock {

struct Ceilings {
  double read_bytes_per_us = 0;
  double flops_per_us = 0;
};

// How results name them.
inline constexpr char kReadBandwidthCase[] = "read bandwidth, 4 GiB";
inline constexpr char kGemmRateCase[] = "bf16 GEMM 8192^3";

// Of the host's GPU number `gpu`, which becomes the thread's current one: a plain kernel that reads
// 4 GiB, and cuBLASLt's first choice for a bf16 product of 8192³; medians of replays. Some tenths
// of a second, 5 GiB of device memory meanwhile. Returns empty, or why not: no GPU that can be
// used, or a build without CUDA.
std::string MeasureCeilings(int gpu, Ceilings* out);

}  // namespace rootstock
