// What fully sharded adapters lack of v on a rank: packed for one collective, and put back.
#pragma once

#include "kernels/lora/lora_cuda.h"

namespace rootstock::kernels::cuda {

// A member of a LoraStep whose adapter is fully sharded. Its v takes `width` floats of a rank's
// piece of a target, from `begin` on; width ≥ ceil(lora_rank / tp_size) at every site.
struct LoraExchangeMember {
  const LoraSiteEntry* sites = nullptr;  // of its adapter
  int32_t member = 0;
  int32_t begin = 0;
  int32_t width = 0;
};

// The layers of `sites` count three times over: those of Shrink (components of A on this rank), of
// Expand (all components) and of the expand over a slice.
struct LoraExchangeStep {
  const int32_t* num_members = nullptr;         // [1], device memory
  const LoraExchangeMember* members = nullptr;  // [num_members], device memory
  int max_members = 0;                          // capacity, for grids
  int width = 0;                                // of all members
  int num_layers = 0;
  int tp_size = 1, tp_rank = 0;
  float* data = nullptr;  // [tp_size · kMaxLoraTargets · width]
};

// Floats that a collective moves. Gather: of one rank's piece; pieces lie in data by tp_rank. Sum:
// of all.
constexpr size_t LoraGatherFloats(const LoraExchangeStep& x, const LoraTargets& targets) {
  return static_cast<size_t>(targets.count) * x.width;
}
constexpr size_t LoraSumFloats(const LoraExchangeStep& x, const LoraTargets& targets) {
  return static_cast<size_t>(targets.count) * x.width * x.tp_size;
}

// data = v of the members as Shrink left it, its partial sums added. gather: into this rank's
// piece, [target][member][width]; else [target][member][tp_size · width]. Zeros where a rank holds
// fewer components. `targets` as in LoraShrink, num_tokens too.
void PackLora(const LoraStep& step, const LoraExchangeStep& exchange, const LoraTargets& targets,
              bool gather, int num_tokens, cudaStream_t stream);

// v = data, as the consumers read it. Piece p of a lora_rank came from tp_rank
// (p - layer - module) mod tp_size: common/tp's LoraPieceOwner.
void UnpackLora(const LoraStep& step, const LoraExchangeStep& exchange, const LoraTargets& targets,
                bool gather, int num_tokens, cudaStream_t stream);

}  // namespace rootstock::kernels::cuda
