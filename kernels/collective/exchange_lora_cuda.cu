#include "kernels/collective/exchange_lora_cuda.h"
#include "kernels/collective/peer_exchange.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/lora/lora_device.cuh"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kPieceFloats = 4;
constexpr int kSlot = kMaxLoraRank / kPieceFloats;  // pieces that a (member, target) may take
constexpr size_t kMostSlots = 2048;                 // blocks of a GPU that surely run all at once

// One (member, target).
struct ExchangeSite {
  float* v = nullptr;
  int lora_rank = 0;  // over all ranks
  int held = 0;       // components here
  int share = 0;      // of a rank's piece; gather
  int shift = 0;      // rank t holds piece (t + shift) mod tp_size

  __device__ ExchangeSite() {}  // of no member
  __device__ ExchangeSite(const LoraStep& step, const LoraExchangeStep& x,
                          const LoraTargets& targets, bool gather, int splits) {
    const LoraExchangeMember m = LoadKept(x.members + blockIdx.x);
    const int target = blockIdx.y;
    // A sum is of a module whose A has all components on every rank.
    LoraTargets whole = targets;
    if (gather) whole.layer += x.num_layers;
    lora_rank = LoadKept(&SiteOf(m.sites, whole, target).lora_rank);
    held = LoadKept(&SiteOf(m.sites, targets, target).lora_rank);
    share = gather ? (lora_rank + x.tp_size - 1) / x.tp_size : lora_rank;
    shift = (targets.layer + Pick(targets.module, target)) % x.tp_size;
    v = VOf(step, splits, m.member, target);
  }

  // Components 4i … 4i + 3 of what this rank holds: the splits in order, their loads under way
  // together.
  __device__ float4 Own(int splits, int i) const {
    constexpr int kBatch = 4;
    const int left = held - kPieceFloats * i;
    if (left <= 0) return {};
    const float4* part = reinterpret_cast<const float4*>(v) + i;
    const int stride = PaddedRank(held) / kPieceFloats;
    float4 own = {};
    for (int first = 0; first < splits; first += kBatch) {
      float4 of[kBatch] = {};
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        if (first + s < splits) of[s] = part[(first + s) * stride];
      }
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        if (first + s < splits) {
          own = {own.x + of[s].x, own.y + of[s].y, own.z + of[s].z, own.w + of[s].w};
        }
      }
    }
    return {own.x, left > 1 ? own.y : 0.0f, left > 2 ? own.z : 0.0f, left > 3 ? own.w : 0.0f};
  }

  // The same of rank `owner`'s piece, as the consumers read v.
  __device__ void Put(int tp_size, int owner, bool gather, int i, const float4& piece) const {
    const float value[kPieceFloats] = {piece.x, piece.y, piece.z, piece.w};
    const int first = gather ? (owner + shift) % tp_size * share : 0;
#pragma unroll
    for (int c = 0; c < kPieceFloats; ++c) {
      const int in_piece = kPieceFloats * i + c, r = first + in_piece;
      if (in_piece < share && r < lora_rank) v[r] = value[c];
    }
  }

  // What else consumers read.
  __device__ void PutZeros(int splits) const {
    const int padded = PaddedRank(lora_rank);
    for (int r = lora_rank + threadIdx.x; r < splits * padded; r += blockDim.x) v[r] = 0.0f;
  }
};

__device__ __forceinline__ uint4 Bits(const float4& x) {
  return Full(uint4{__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z),
                    __float_as_uint(x.w)});
}
__device__ __forceinline__ float4 Floats(const uint4& x) {
  return {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
}

// grid [members, targets]; a thread is a piece. Blocks behind the last member only arrive; the
// first thread sends in any case, so that no rank runs ahead through calls without members.
__global__ void __launch_bounds__(kSlot)
    ExchangeKernel(const __grid_constant__ PeerGroup group, LoraStep step, LoraExchangeStep x,
                   LoraTargets targets, bool gather, int splits) {
  GridLaunchDependents();
  // What no kernel of the step writes: a chain of loads that would else follow the wait.
  const bool live = static_cast<int>(blockIdx.x) < LoadKept(x.num_members);
  const ExchangeSite site = live ? ExchangeSite(step, x, targets, gather, splits) : ExchangeSite();
  GridDependencyWait();
  const PeerCall call(group);
  if (call.dead) return;
  const int i = threadIdx.x;
  const bool first = blockIdx.x == 0 && blockIdx.y == 0 && i == 0;
  const bool mine = first || kPieceFloats * i < site.share;
  const size_t slots = gridDim.x * gridDim.y;
  const size_t at = (size_t{blockIdx.y} * gridDim.x + blockIdx.x) * kSlot + i;
  const uint4 own = mine ? Bits(site.Own(splits, i)) : uint4{};
  for (int r = 0; mine && r < group.size; ++r) {
    if (r == group.rank) continue;
    StoreVolatile16(call.Inbox(r) + PlaceOf(group.rank, r) * slots * kSlot + at, own);
  }
  call.Arrive();  // all of the block have read v
  site.PutZeros(splits);
  if (!mine) return;
  float4 sum = {};
  for (int r = 0; r < group.size; ++r) {
    uint4 piece = own;
    uint4* const from = call.Inbox(group.rank) + PlaceOf(r, group.rank) * slots * kSlot + at;
    if (r != group.rank && !call.Await(from, piece)) return;
    const float4 part = Floats(piece);
    if (gather) site.Put(group.size, r, gather, i, part);
    sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
  }
  if (!gather) site.Put(group.size, group.rank, gather, i, sum);
}

}  // namespace

bool TakesExchangeLora(const PeerGroup& group, int num_tokens, int max_members) {
  const size_t slots = size_t{kMaxLoraTargets} * max_members;
  return num_tokens <= kDecodeTokens && slots * group.sharing <= kMostSlots &&
         group.size <= kMaxPeers && (group.size - 1) * slots * kSlot * 16 <= group.buffer_bytes;
}

cudaError_t ExchangeLora(const PeerGroup& group, const LoraStep& step,
                         const LoraExchangeStep& exchange, const LoraTargets& targets, bool gather,
                         int num_tokens, cudaStream_t stream) {
  if (!TakesExchangeLora(group, num_tokens, exchange.max_members)) return cudaErrorInvalidValue;
  const dim3 grid(exchange.max_members, targets.count);
  return LaunchDependent(ExchangeKernel, grid, kSlot, 0, stream, 1, group, step, exchange, targets,
                         gather, LoraSplits(num_tokens, targets.in));
}

}  // namespace rootstock::kernels::cuda
