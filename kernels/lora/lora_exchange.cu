#include "kernels/lora/lora_device.cuh"
#include "kernels/lora/lora_exchange.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kThreads = 128;

// Where a member's floats of a target begin.
__device__ __forceinline__ size_t PlaceOf(const LoraExchangeStep& x, const LoraExchangeMember& m,
                                          int target, bool gather) {
  const size_t at = static_cast<size_t>(target) * x.width + m.begin;
  return gather ? at : at * x.tp_size;
}

// A block is one (member, target): piece[r] = Σ_split v[split][r].
__global__ void __launch_bounds__(kThreads)
    PackKernel(LoraStep step, LoraExchangeStep x, LoraTargets targets, bool gather, int splits) {
  if (blockIdx.x >= *x.num_members) return;
  const LoraExchangeMember m = x.members[blockIdx.x];
  const int target = blockIdx.y;
  const int held = SiteOf(m.sites, targets, target).lora_rank;
  const int padded = PaddedRank(held);
  const float* v = VOf(step, splits, m.member, target);
  const size_t piece = gather ? static_cast<size_t>(x.tp_rank) * targets.count * x.width : 0;
  float* out = x.data + piece + PlaceOf(x, m, target, gather);
  const int floats = gather ? m.width : m.width * x.tp_size;
  for (int r = threadIdx.x; r < floats; r += kThreads) {
    float sum = 0.0f;
    for (int s = 0; r < held && s < splits; ++s) sum += v[s * padded + r];
    out[r] = sum;
  }
}

// A block is one (member, target): v[0][r] = the component, the other splits are zeros.
__global__ void __launch_bounds__(kThreads)
    UnpackKernel(LoraStep step, LoraExchangeStep x, LoraTargets targets, bool gather, int splits) {
  if (blockIdx.x >= *x.num_members) return;
  const LoraExchangeMember m = x.members[blockIdx.x];
  const int target = blockIdx.y;
  // A sum is of a module whose A has all components on every rank.
  LoraTargets whole = targets;
  if (gather) whole.layer += x.num_layers;
  const int lora_rank = SiteOf(m.sites, whole, target).lora_rank;
  const int padded = PaddedRank(lora_rank);
  const int share = (lora_rank + x.tp_size - 1) / x.tp_size;
  const int shift = (targets.layer + Pick(targets.module, target)) % x.tp_size;
  const size_t rank_floats = static_cast<size_t>(targets.count) * x.width;
  const float* in = x.data + PlaceOf(x, m, target, gather);
  float* v = VOf(step, splits, m.member, target);
  for (int r = threadIdx.x; r < padded; r += kThreads) {
    float value = 0.0f;
    if (r < lora_rank && gather) {
      const int owner = (r / share + x.tp_size - shift) % x.tp_size;
      value = in[owner * rank_floats + r % share];
    } else if (r < lora_rank) {
      value = in[r];
    }
    v[r] = value;
    for (int s = 1; s < splits; ++s) v[s * padded + r] = 0.0f;
  }
}

dim3 Grid(const LoraExchangeStep& exchange, const LoraTargets& targets) {
  return {static_cast<unsigned>(exchange.max_members), static_cast<unsigned>(targets.count)};
}

}  // namespace

void PackLora(const LoraStep& step, const LoraExchangeStep& exchange, const LoraTargets& targets,
              bool gather, int num_tokens, cudaStream_t stream) {
  PackKernel<<<Grid(exchange, targets), kThreads, 0, stream>>>(step, exchange, targets, gather,
                                                               LoraSplits(num_tokens, targets.in));
}

void UnpackLora(const LoraStep& step, const LoraExchangeStep& exchange, const LoraTargets& targets,
                bool gather, int num_tokens, cudaStream_t stream) {
  UnpackKernel<<<Grid(exchange, targets), kThreads, 0, stream>>>(
      step, exchange, targets, gather, LoraSplits(num_tokens, targets.in));
}

}  // namespace rootstock::kernels::cuda
