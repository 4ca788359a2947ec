// Grids of the kernels that walk tiles.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/lora/lora_cuda.h"

namespace rootstock::kernels::cuda {

inline int NumSms() {
  int device = 0;
  int sms = 132;
  if (cudaGetDevice(&device) == cudaSuccess) {
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  }
  return sms;
}

// Workers that share the parts (of part_tokens) of a step's tiles, `blocks` blocks each, so that
// all run at once at blocks_per_sm.
inline int TileWorkers(const LoraStep& step, int num_tokens, int part_tokens, int blocks,
                       int blocks_per_sm) {
  const int parts = step.max_tiles * (LoraTileTokens(num_tokens) / part_tokens);
  return std::clamp(blocks_per_sm * NumSms() / blocks, 1, parts);
}

}  // namespace rootstock::kernels::cuda
