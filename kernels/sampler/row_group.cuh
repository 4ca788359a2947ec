// The blocks that work on one row of logits together: a cluster where the GPU has them, else one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/sampler/cluster.cuh"
#include "kernels/sampler/sampler_cuda.h"

namespace rootstock::kernels::cuda {

constexpr int kMaxGroup = 8;  // blocks
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 256;  // values that a warp takes at a time
constexpr int kHistogram = 1024;
constexpr int kSlice = kHistogram / kMaxGroup;
constexpr int kFew = 256;  // values that one block finishes alone
static_assert(kFew <= kThreads);
constexpr uint32_t kAllLanes = 0xffffffffu;

// The first element at which a running sum reaches a goal.
struct Crossing {
  double before = 0.0;  // the sum without it
  double amount = 0.0;
  int64_t index = -1;
};

// A block's shared memory for exchanges; blocks of a group send into each other's.
struct Exchange {
  alignas(16) unsigned char warps[kWarps * 32];
  alignas(16) unsigned char slots[2][kMaxGroup * 32];
  Crossing found;
  uint64_t gathers[2], publish, push, lists;  // barriers
};

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

template <typename T, typename Combine>
__device__ T WarpReduce(T value, int lanes, Combine combine) {
#pragma unroll 1  // code that is run once had better be short
  for (int mask = lanes / 2; mask > 0; mask /= 2) value = combine(value, ShuffleXor(value, mask));
  return value;
}

// Of SampleStep::live_rows.
__device__ inline bool IsPad(const SampleStep& step, int row) {
  return step.live_rows != nullptr && row >= *step.live_rows;
}

struct Add {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

// Exchanges within a group; sums are in an order that the vocabulary's size alone fixes. All
// threads of the group call the same methods in the same order. Data travel as packets that a
// barrier in the receiver's shared memory counts, which is faster than the cluster's barrier with
// its fence. No packet meets a reader of the one before: a block sends to a place (slots, found,
// received) again only after a Gather that its readers joined after reading. *One per thread.*
class RowGroup {
 public:
  // The others' shared memory may be sent to after Start.
  __device__ explicit RowGroup(Exchange* shared)
      : shared_(shared), rank_(ClusterRank()), size_(ClusterSize()) {
    if (threadIdx.x == 0) {
      for (uint64_t* b : {&shared_->gathers[0], &shared_->gathers[1], &shared_->publish,
                          &shared_->push, &shared_->lists}) {
        InitBarrier(b);
      }
      FenceBarrierInit();
    }
    ClusterArrive();
  }
  __device__ void Start() { ClusterWait(); }

  __device__ int rank() const { return rank_; }
  __device__ int size() const { return size_; }

  // [size]: what each block's threads' values come to. Valid until the next call but one.
  template <typename T, typename Combine>
  __device__ const T* Gather(T mine, Combine combine) {
    static_assert(sizeof(T) % 8 == 0 && sizeof(T) <= 32);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    T* warps = reinterpret_cast<T*>(shared_->warps);
    T* slots = reinterpret_cast<T*>(shared_->slots[gather_turn_ & 1]);
    uint64_t* barrier = &shared_->gathers[gather_turn_ & 1];
    mine = WarpReduce(mine, 32, combine);
    if (lane == 0) StoreWords(warps + warp, mine);
    __syncthreads();
    if (warp == 0) {
      const T block = WarpReduce(warps[lane % kWarps], kWarps, combine);
      if (lane == 0) Expect(barrier, size_ * sizeof(T));
      if (lane < size_) SendWords(slots + rank_, block, barrier, lane);
    }
    Await(barrier, gather_turn_ >> 1);
    ++gather_turn_;
    return slots;
  }

  template <typename T, typename Combine>
  __device__ T Reduce(T mine, Combine combine) {
    const T* blocks = Gather(mine, combine);
    T all = blocks[0];
#pragma unroll 1
    for (int r = 1; r < size_; ++r) all = combine(all, blocks[r]);
    return all;
  }

  // What the owner's first warp found, to every thread of the group. After a Gather.
  __device__ Crossing Publish(int owner, const Crossing& found) {
    if (threadIdx.x == 0) Expect(&shared_->publish, sizeof(found));
    if (rank_ == owner && static_cast<int>(threadIdx.x) < size_) {
      SendWords(&shared_->found, found, &shared_->publish, threadIdx.x);
    }
    Await(&shared_->publish, publish_turn_++);
    return shared_->found;
  }

  // Slice r of every block's complete `histogram` goes to block r's received [kMaxGroup · kSlice].
  // `arrays` arrays of `bins` counters lie one after the other; a slice has bins / size of each.
  // Returns the block's slices, one for each block, kSlice apart. Before a Gather.
  __device__ const uint32_t* PushHistogram(const uint32_t* histogram, uint32_t* received, int bins,
                                           int arrays) {
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    const int slice = bins / size_;
    if (threadIdx.x == 0) Expect(&shared_->push, size_ * arrays * slice * 4);
#pragma unroll 1
    for (int i = threadIdx.x * 4; i < arrays * bins; i += kThreads * 4) {
      const int array = i / bins, to = i % bins / slice, at = i % slice;
      SendFour(received + rank_ * kSlice + array * slice + at, histogram + i, &shared_->push, to);
    }
    Await(&shared_->push, push_turn_++);
    return received;
#else
    return histogram;
#endif
  }

  // Each block's list [own] to the first block's `all`, by ranks one after the other; n in sum.
  // `before`: how many the lower ranks have. Right after the Gather that tells.
  __device__ void SendList(const uint64_t* list, int own, uint64_t* all, int before, int n) {
    if (rank_ == 0 && threadIdx.x == 0) Expect(&shared_->lists, n * sizeof(list[0]));
    if (static_cast<int>(threadIdx.x) < own) {
      SendWords(all + before + threadIdx.x, list[threadIdx.x], &shared_->lists, 0);
    }
    if (rank_ == 0 && threadIdx.x < 32) WaitFor(&shared_->lists, list_turn_);
    ++list_turn_;
    __syncthreads();
  }

 private:
  // One warp looks at the barrier: the others' looking would take its issue slots.
  __device__ void Await(uint64_t* barrier, int turn) const {
    if (threadIdx.x < 32) WaitFor(barrier, turn);
    __syncthreads();
  }

  Exchange* shared_;
  int rank_;
  int size_;
  int gather_turn_ = 0;
  int publish_turn_ = 0;
  int push_turn_ = 0;
  int list_turn_ = 0;
};

}  // namespace rootstock::kernels::cuda
