#include "kernels/collective/all_reduce_cuda.h"
#include "kernels/collective/peer_exchange.cuh"
#include "kernels/cuda/launch.h"

namespace rootstock::kernels::cuda {
namespace {

// data[i] = Σ_r data_r[i]. grid [blocks]; a thread pushes and sums the same pieces.
template <typename T, int kRanks>
__global__ void __launch_bounds__(kPeerThreads)
    OneShotKernel(const __grid_constant__ PeerGroup group, T* data, size_t n) {
  GridDependencyWait();
  GridLaunchDependents();
  const PeerCall call(group);
  if (call.dead) return;
  const size_t pieces = (n + Piece<T>::kElements - 1) / Piece<T>::kElements;
  const size_t first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  for (size_t i = first; i < pieces; i += step) {
    const uint4 own = Full(Piece<T>::Load(data, n, i));
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      if (r >= group.size || r == group.rank) continue;
      StoreVolatile16(call.Inbox(r) + PlaceOf(group.rank, r) * pieces + i, own);
    }
  }
  call.Arrive();
  uint4* const inbox = call.Inbox(group.rank);
  for (size_t i = first; i < pieces; i += step) {
    uint4 sum;
    const uint4 own = Full(Piece<T>::Load(data, n, i));
    if (!SumPiece<T, kRanks>(call, own, inbox + i, pieces, sum)) return;
    Piece<T>::Store(data, n, i, sum);
  }
}

// The same in two steps: rank r sums the r-th part of the data, then sends the sum to all. A thread
// has the same places of every part.
template <typename T, int kRanks>
__global__ void __launch_bounds__(kPeerThreads)
    TwoShotKernel(const __grid_constant__ PeerGroup group, T* data, size_t n, size_t part) {
  GridDependencyWait();
  GridLaunchDependents();
  const PeerCall call(group);
  if (call.dead) return;
  const size_t pieces = (n + Piece<T>::kElements - 1) / Piece<T>::kElements;
  const size_t first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  const int others = group.size - 1;
  const auto length = [&](int r) {
    return min(pieces, (r + 1) * part) - min(pieces, static_cast<size_t>(r) * part);
  };
  for (int ahead = 1; ahead <= others; ++ahead) {
    const int r = (group.rank + ahead) % group.size;
    uint4* const inbox = call.Inbox(r) + PlaceOf(group.rank, r) * part;
    for (size_t i = first; i < length(r); i += step) {
      StoreVolatile16(inbox + i, Full(Piece<T>::Load(data, n, r * part + i)));
    }
  }
  call.Arrive();
  uint4* const inbox = call.Inbox(group.rank);
  for (size_t i = first; i < length(group.rank); i += step) {
    const size_t at = group.rank * part + i;
    uint4 sum;
    const uint4 own = Full(Piece<T>::Load(data, n, at));
    if (!SumPiece<T, kRanks>(call, own, inbox + i, part, sum)) return;
    Piece<T>::Store(data, n, at, sum);
    for (int ahead = 1; ahead <= others; ++ahead) {
      const int r = (group.rank + ahead) % group.size;
      StoreVolatile16(call.Inbox(r) + (others + PlaceOf(group.rank, r)) * part + i, sum);
    }
  }
  for (int ahead = others; ahead >= 1; --ahead) {
    const int r = (group.rank + ahead) % group.size;
    uint4* const sums = inbox + (others + PlaceOf(r, group.rank)) * part;
    for (size_t i = first; i < length(r); i += step) {
      uint4 sum;
      if (!call.Await(sums + i, sum)) return;
      Piece<T>::Store(data, n, r * part + i, sum);
    }
  }
}

size_t PiecesOf(size_t bytes) { return (bytes + 15) / 16; }

template <typename T, int kRanks>
cudaError_t LaunchSum(const PeerGroup& group, SumAlgorithm algorithm, void* data, size_t n,
                      cudaStream_t stream) {
  T* const elements = static_cast<T*>(data);
  const size_t pieces = PiecesOf(n * sizeof(T));
  if (algorithm == SumAlgorithm::kOneShot) {
    const PeerGrid grid = GridFor(group, pieces);
    return LaunchDependent(OneShotKernel<T, kRanks>, grid.blocks, grid.threads, 0, stream, 1, group,
                           elements, n);
  }
  const size_t part = (pieces + group.size - 1) / group.size;
  const PeerGrid grid = GridFor(group, part);
  return LaunchDependent(TwoShotKernel<T, kRanks>, grid.blocks, grid.threads, 0, stream, 1, group,
                         elements, n, part);
}

template <typename T>
cudaError_t LaunchSum(const PeerGroup& group, SumAlgorithm algorithm, void* data, size_t n,
                      cudaStream_t stream) {
  if (group.size == 2) return LaunchSum<T, 2>(group, algorithm, data, n, stream);
  if (group.size <= 4) return LaunchSum<T, 4>(group, algorithm, data, n, stream);
  return LaunchSum<T, kMaxPeers>(group, algorithm, data, n, stream);
}

}  // namespace

size_t MostSummed(SumAlgorithm algorithm, Type type, int size, size_t buffer_bytes) {
  const size_t others = size - 1, pieces = buffer_bytes / 16;
  const size_t most =
      algorithm == SumAlgorithm::kOneShot ? pieces / others : pieces / (2 * others) * size;
  return most * 16 / SizeOf(type);
}

cudaError_t AllReduceSum(const PeerGroup& group, SumAlgorithm algorithm, void* data, size_t n,
                         Type type, cudaStream_t stream) {
  if (group.size == 1 || n == 0) return cudaSuccess;
  if (group.size > kMaxPeers || n > MostSummed(algorithm, type, group.size, group.buffer_bytes)) {
    return cudaErrorInvalidValue;
  }
  return type == Type::kF32 ? LaunchSum<float>(group, algorithm, data, n, stream)
                            : LaunchSum<__nv_bfloat16>(group, algorithm, data, n, stream);
}

}  // namespace rootstock::kernels::cuda
