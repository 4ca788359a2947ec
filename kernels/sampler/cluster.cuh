// Sending between the blocks of a cluster, counted by the receiver's barriers. On GPUs without
// clusters a block is alone: it sends to itself, and __syncthreads after
// WaitFor makes that seen.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/cuda/copy.cuh"

namespace rootstock::kernels::cuda {

// By words: the compiler copies structs that came through memcpy byte by byte.
template <typename T>
__device__ void StoreWords(T* to, const T& value) {
  uint64_t words[sizeof(T) / 8];
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 8); ++i) {
    reinterpret_cast<uint64_t*>(to)[i] = words[i];
  }
}

#if __CUDA_ARCH__ >= 900

__device__ inline int ClusterRank() { return static_cast<int>(__clusterRelativeBlockRank()); }
__device__ inline int ClusterSize() { return static_cast<int>(__clusterSizeInBlocks()); }
__device__ inline void ClusterArrive() { __cluster_barrier_arrive_relaxed(); }
__device__ inline void ClusterWait() { __cluster_barrier_wait(); }

// Of the same variable in the shared memory of block `rank`.
__device__ inline uint32_t PeerAddress(const void* mine, int rank) {
  uint32_t out;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(SharedAddress(mine)), "r"(rank));
  return out;
}

// For one thread's Expect each time.
__device__ inline void InitBarrier(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(SharedAddress(barrier)) : "memory");
}

// Of the thread that called InitBarrier, before ClusterArrive.
__device__ inline void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void Expect(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}

// `turn`: how often the barrier was waited for before.
__device__ inline void WaitFor(uint64_t* barrier, int turn) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(SharedAddress(barrier)), "r"(turn & 1)
        : "memory");
  }
}

template <typename T>
__device__ void SendWords(T* mine, const T& value, uint64_t* barrier, int rank) {
  uint64_t words[sizeof(T) / 8];
  memcpy(words, &value, sizeof(T));
  const uint32_t to = PeerAddress(mine, rank), signal = PeerAddress(barrier, rank);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 8); ++i) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
                     to + 8 * i),
                 "l"(words[i]), "r"(signal)
                 : "memory");
  }
}

// 16 bytes, aligned.
__device__ inline void SendFour(uint32_t* mine, const uint32_t* from, uint64_t* barrier, int rank) {
  const uint4 v = *reinterpret_cast<const uint4*>(from);
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(PeerAddress(mine, rank)),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(PeerAddress(barrier, rank))
      : "memory");
}

#else

__device__ inline int ClusterRank() { return 0; }
__device__ inline int ClusterSize() { return 1; }
__device__ inline void ClusterArrive() {}
__device__ inline void ClusterWait() { __syncthreads(); }
__device__ inline void InitBarrier(uint64_t*) {}
__device__ inline void FenceBarrierInit() {}
__device__ inline void Expect(uint64_t*, int) {}
__device__ inline void WaitFor(uint64_t*, int) {}
template <typename T>
__device__ void SendWords(T* mine, const T& value, uint64_t*, int) {
  StoreWords(mine, value);
}

#endif

}  // namespace rootstock::kernels::cuda
