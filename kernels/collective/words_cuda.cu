// Gather and broadcast of words; the inbox.
#include <algorithm>

#include "kernels/collective/all_reduce_cuda.h"
#include "kernels/collective/peer_exchange.cuh"
#include "kernels/cuda/launch.h"

namespace rootstock::kernels::cuda {
namespace {

struct GatherPlan {
  size_t words[kMaxPeers];
  size_t begin[kMaxPeers];  // of each part in `out`, in words
  size_t stride;            // of parts in an inbox, in 16 bytes
  int root;                 // or kAllRanks

  // 16-byte pieces that rank `from` sends rank `to`: one at least, so that none runs ahead.
  __device__ size_t Pieces(int from, int to) const {
    const bool wanted = root == kAllRanks || root == to;
    return wanted ? max((words[from] + 3) / 4, size_t{1}) : 1;
  }
};

// Words [4 · i, 4 · i + 4) of x[n]; a zero beyond its end.
__device__ uint4 LoadWords(const uint32_t* x, size_t n, size_t i) {
  if (4 * i + 4 <= n && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
    return Full(reinterpret_cast<const uint4*>(x)[i]);
  }
  const auto word = [&](size_t at) { return at < n ? Full(x[at]) : 0u; };
  return {word(4 * i), word(4 * i + 1), word(4 * i + 2), word(4 * i + 3)};
}

__device__ void StoreWords(uint32_t* x, size_t n, size_t i, const uint4& piece) {
  if (4 * i + 4 <= n && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
    reinterpret_cast<uint4*>(x)[i] = piece;
    return;
  }
  const uint32_t word[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if (4 * i + w < n) x[4 * i + w] = word[w];
  }
}

// out[begin[r] …] = in of rank r. grid [blocks].
__global__ void __launch_bounds__(kPeerThreads)
    GatherKernel(const __grid_constant__ PeerGroup group, const uint32_t* in,
                 const __grid_constant__ GatherPlan plan, uint32_t* out) {
  GridDependencyWait();
  GridLaunchDependents();
  const PeerCall call(group);
  if (call.dead) return;
  const size_t first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  const int rank = group.rank;
  const size_t mine = plan.words[rank];
  for (int r = 0; r < group.size; ++r) {
    if (r == rank) continue;
    uint4* const inbox = call.Inbox(r) + PlaceOf(rank, r) * plan.stride;
    for (size_t i = first; i < plan.Pieces(rank, r); i += step) {
      StoreVolatile16(inbox + i, LoadWords(in, mine, i));
    }
  }
  call.Arrive();
  const bool keeps = plan.root == kAllRanks || plan.root == rank;
  for (int r = 0; r < group.size; ++r) {
    uint4* const part = call.Inbox(rank) + PlaceOf(r, rank) * plan.stride;
    for (size_t i = first; i < plan.Pieces(r, rank); i += step) {
      uint4 piece;
      if (r == rank) {
        piece = LoadWords(in, mine, i);
      } else if (!call.Await(part + i, piece)) {
        return;
      }
      if (keeps) StoreWords(out + plan.begin[r], plan.words[r], i, piece);
    }
  }
}

// data = root's. Words travel as their halves, so that none is kEmptyWord; the other ranks push
// zeros, so that none runs ahead. grid [blocks].
__global__ void __launch_bounds__(kPeerThreads)
    BroadcastKernel(const __grid_constant__ PeerGroup group, uint32_t* data, size_t words,
                    int root) {
  GridDependencyWait();
  GridLaunchDependents();
  const PeerCall call(group);
  if (call.dead) return;
  const size_t pieces = (words + 1) / 2;
  const size_t first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  for (size_t i = first; i < pieces; i += step) {
    const bool sends = group.rank == root;
    const uint32_t a = sends ? data[2 * i] : 0,
                   b = sends && 2 * i + 1 < words ? data[2 * i + 1] : 0;
    const uint4 halves = {a & 0xffffu, a >> 16, b & 0xffffu, b >> 16};
    for (int r = 0; r < group.size; ++r) {
      if (r == group.rank) continue;
      StoreVolatile16(call.Inbox(r) + PlaceOf(group.rank, r) * pieces + i, halves);
    }
  }
  call.Arrive();
  for (int r = 0; r < group.size; ++r) {
    if (r == group.rank) continue;
    for (size_t i = first; i < pieces; i += step) {
      uint4 halves;
      if (!call.Await(call.Inbox(group.rank) + PlaceOf(r, group.rank) * pieces + i, halves)) return;
      if (r != root) continue;
      data[2 * i] = halves.x | halves.y << 16;
      if (2 * i + 1 < words) data[2 * i + 1] = halves.z | halves.w << 16;
    }
  }
}

// grid [kPeerBlocks].
__global__ void FillKernel(uint4* inbox, size_t pieces) {
  const uint4 empty = {kEmptyWord, kEmptyWord, kEmptyWord, kEmptyWord};
  for (size_t i = blockIdx.x * kPeerThreads + threadIdx.x; i < pieces;
       i += gridDim.x * kPeerThreads) {
    inbox[i] = empty;
  }
}

}  // namespace

cudaError_t ClearInbox(const PeerGroup& group, cudaStream_t stream) {
  FillKernel<<<kPeerBlocks, kPeerThreads, 0, stream>>>(
      reinterpret_cast<uint4*>(group.inbox[group.rank]), InboxBytes(group.buffer_bytes) / 16);
  const cudaError_t error = cudaGetLastError();
  return error != cudaSuccess ? error
                              : cudaMemsetAsync(group.state, 0, sizeof(*group.state), stream);
}

cudaError_t GatherWords(const PeerGroup& group, const void* in, const size_t* words, void* out,
                        int root, cudaStream_t stream) {
  GatherPlan plan = {};
  plan.root = root;
  size_t begin = 0;
  for (int r = 0; r < group.size; ++r) {
    plan.words[r] = words[r];
    plan.begin[r] = begin;
    begin += words[r];
    plan.stride = std::max({plan.stride, (words[r] + 3) / 4, size_t{1}});
  }
  if ((group.size - 1) * plan.stride * 16 > group.buffer_bytes) return cudaErrorInvalidValue;
  const PeerGrid grid = GridFor(group, plan.stride);
  return LaunchDependent(GatherKernel, grid.blocks, grid.threads, 0, stream, 1, group,
                         static_cast<const uint32_t*>(in), plan, static_cast<uint32_t*>(out));
}

cudaError_t BroadcastWords(const PeerGroup& group, void* data, size_t words, int root,
                           cudaStream_t stream) {
  const size_t pieces = (words + 1) / 2;
  if (group.size == 1 || words == 0) return cudaSuccess;
  if ((group.size - 1) * pieces * 16 > group.buffer_bytes) return cudaErrorInvalidValue;
  const PeerGrid grid = GridFor(group, pieces);
  return LaunchDependent(BroadcastKernel, grid.blocks, grid.threads, 0, stream, 1, group,
                         static_cast<uint32_t*>(data), words, root);
}

}  // namespace rootstock::kernels::cuda
