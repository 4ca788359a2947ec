// Grids of the kernels that walk tiles.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

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

// sm_90a: clusters and warpgroup products.
inline bool HasWarpgroups() {
  int device = 0;
  int major = 0;
  if (cudaGetDevice(&device) == cudaSuccess) {
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  return major == 9;
}

// Tiles of a launch at most; without LoRA a tile is 8 tokens.
inline int LaunchTiles(const LoraStep* step, int num_tokens) {
  return step != nullptr ? step->max_tiles : (num_tokens + 7) / 8;
}

// Blocks of `warps` that share the (tile, piece) pairs of a launch: with LoRA all run at once.
inline int PairBlocks(const LoraStep* step, int num_tokens, int pieces, int warps,
                      int blocks_per_sm) {
  const int64_t pairs = int64_t{LaunchTiles(step, num_tokens)} * pieces;
  const int64_t blocks = (pairs + warps - 1) / warps;
  const int64_t wave = int64_t{blocks_per_sm} * NumSms();
  return static_cast<int>(step != nullptr ? std::min(blocks, wave) : blocks);
}

// Blocks that share the (tile, piece) pairs of a long launch: all run at once.
inline int StreamBlocks(const LoraStep& step, int pieces, int blocks_per_sm) {
  return static_cast<int>(
      std::min<int64_t>(int64_t{step.max_tiles} * pieces, int64_t{blocks_per_sm} * NumSms()));
}

// Whether no run of `to` columns from a multiple of it lies in two targets.
inline bool AlignedTargets(const LoraTargets& targets, int to) {
  for (int i = 0; i < targets.count; ++i) {
    if (targets.column[i] % to != 0 || targets.features[i] % to != 0) return false;
  }
  return true;
}

}  // namespace rootstock::kernels::cuda
