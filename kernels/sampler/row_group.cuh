// The blocks that work on one row of logits together: a cluster where the GPU has them, else one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/sampler/sampler_cuda.h"

namespace rootstock::kernels::cuda {

constexpr int kMaxGroup = 8;  // blocks
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 256;  // values that a warp takes at a time
constexpr int kHistogram = 2048;
constexpr uint32_t kAllLanes = 0xffffffffu;

// The first element at which a running sum reaches a goal.
struct Crossing {
  double before = 0.0;  // the sum without it
  double amount = 0.0;
  int index = -1;
};

// One block's shared memory; blocks of a group write into each other's.
struct GroupShared {
  alignas(16) unsigned char warps[kWarps * 32];
  alignas(16) unsigned char slots[2][kMaxGroup * 32];  // by turns: see RowGroup::Gather
  Crossing found;
  SampleRow row;
  double uniform;
  uint32_t top_count;
  unsigned long long top[kMaxTopLogprobs];
  uint32_t histogram[kHistogram];
};

__device__ inline void GroupArrive() {
#if __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive();
#endif
}

__device__ inline void GroupWait() {
#if __CUDA_ARCH__ >= 900
  __cluster_barrier_wait();
#else
  __syncthreads();
#endif
}

__device__ inline void GroupSync() {
  GroupArrive();
  GroupWait();
}

// The same variable in the shared memory of another block of the group.
template <typename T>
__device__ T* Peer(T* mine, int rank) {
#if __CUDA_ARCH__ >= 900
  return static_cast<T*>(__cluster_map_shared_rank(mine, rank));
#else
  return mine;
#endif
}

template <typename T>
__device__ T ShuffleXor(const T& value, int mask) {
  constexpr int kWords = sizeof(T) / 4;
  uint32_t words[kWords];
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (uint32_t& word : words) word = __shfl_xor_sync(kAllLanes, word, mask);
  T out;
  memcpy(&out, words, sizeof(T));
  return out;
}

// By words: the compiler copies structs that came through memcpy byte by byte.
template <typename T>
__device__ void Store(T* to, const T& value) {
  constexpr int kWords = sizeof(T) / 4;
  uint32_t words[kWords];
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (int i = 0; i < kWords; ++i) reinterpret_cast<uint32_t*>(to)[i] = words[i];
}

template <typename T, typename Combine>
__device__ T WarpReduce(T value, int lanes, Combine combine) {
#pragma unroll
  for (int mask = lanes / 2; mask > 0; mask /= 2) value = combine(value, ShuffleXor(value, mask));
  return value;
}

struct Add {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

// Sums over a group in an order that the vocabulary's size alone fixes. All threads of the group
// call the same methods in the same order. *One per thread.*
class RowGroup {
 public:
  __device__ explicit RowGroup(GroupShared* shared) : shared_(shared) {
#if __CUDA_ARCH__ >= 900
    rank_ = static_cast<int>(__clusterRelativeBlockRank());
    size_ = static_cast<int>(__clusterSizeInBlocks());
#endif
  }

  __device__ GroupShared& shared() const { return *shared_; }
  __device__ int rank() const { return rank_; }
  __device__ int size() const { return size_; }

  // [size]: what each block's threads' values come to. Valid until the next call but one: a block
  // writes that one's slots after a barrier which every reader has passed.
  template <typename T, typename Combine>
  __device__ const T* Gather(T mine, Combine combine) {
    static_assert(sizeof(T) % 4 == 0 && sizeof(T) <= 32);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    T* warps = reinterpret_cast<T*>(shared_->warps);
    T* slots = reinterpret_cast<T*>(shared_->slots[turn_]);
    turn_ ^= 1;
    mine = WarpReduce(mine, 32, combine);
    if (lane == 0) Store(warps + warp, mine);
    __syncthreads();
    if (warp == 0) {
      const T block = WarpReduce(warps[lane % kWarps], kWarps, combine);
      if (lane < size_) Store(Peer(slots, lane) + rank_, block);
    }
    GroupSync();
    return slots;
  }

  template <typename T, typename Combine>
  __device__ T Reduce(T mine, Combine combine) {
    const T* blocks = Gather(mine, combine);
    T all = blocks[0];
    for (int r = 1; r < size_; ++r) all = combine(all, blocks[r]);
    return all;
  }

  // What the owner's first warp found, to every thread of the group. `found`: in that warp's lanes.
  __device__ Crossing Publish(int owner, const Crossing& found) {
    if (rank_ == owner && static_cast<int>(threadIdx.x) < size_)
      Store(Peer(&shared_->found, threadIdx.x), found);
    GroupSync();
    return shared_->found;
  }

 private:
  GroupShared* shared_;
  int rank_ = 0;
  int size_ = 1;
  int turn_ = 0;
};

}  // namespace rootstock::kernels::cuda
