// The parts of a collective's kernel: words that are their own flags.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "kernels/collective/all_reduce_cuda.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/vec.cuh"

namespace rootstock::kernels::cuda {

constexpr int kPeerThreads = 512;  // of a block, at most
constexpr int kPeerBlocks = 128;   // of a GPU's ranks: all run at once, whatever runs beside them
constexpr int kPolls = 1024;       // between looks at the clock and the host's word

struct PeerGrid {
  unsigned blocks, threads;
};

// A thread a piece while they last. Many small blocks have their first pieces under way soonest.
inline PeerGrid GridFor(const PeerGroup& group, size_t pieces) {
  const unsigned threads =
      pieces <= kPeerBlocks * kPeerThreads / 2 ? kPeerThreads / 2 : kPeerThreads;
  const size_t blocks = std::max<size_t>(1, (pieces + threads - 1) / threads);
  return {static_cast<unsigned>(std::min<size_t>(blocks, kPeerBlocks / group.sharing)), threads};
}

__device__ __forceinline__ uint4 LoadVolatile16(const void* p) {
  uint4 x;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p)
               : "memory");
  return x;
}

__device__ __forceinline__ void StoreVolatile16(void* p, const uint4& x) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(x.x), "r"(x.y),
               "r"(x.z), "r"(x.w)
               : "memory");
}

__device__ __forceinline__ uint32_t Full(uint32_t word) { return word == kEmptyWord ? 0 : word; }
__device__ __forceinline__ uint4 Full(const uint4& x) {
  return {Full(x.x), Full(x.y), Full(x.z), Full(x.w)};
}
__device__ __forceinline__ bool HasArrived(const uint4& x) {
  return x.x != kEmptyWord && x.y != kEmptyWord && x.z != kEmptyWord && x.w != kEmptyWord;
}

__device__ __forceinline__ uint64_t Nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

// Where `from` lies among the parts that `to` gets.
__device__ __forceinline__ int PlaceOf(int from, int to) { return from < to ? from : from - 1; }

// One call of a collective, as a thread sees it.
struct PeerCall {
  const PeerGroup& group;
  size_t base;  // of this call's buffer in every inbox, in 16 bytes
  uint32_t buffer;
  bool dead;

  // After the wait for earlier kernels.
  __device__ explicit PeerCall(const PeerGroup& g) : group(g) {
    const uint4 state = LoadVolatile16(g.state);
    buffer = state.x;
    dead = state.z != 0;
    base = buffer * (g.buffer_bytes / 16);
  }

  __device__ uint4* Inbox(int rank) const {
    return reinterpret_cast<uint4*>(group.inbox[rank]) + base;
  }

  // The whole block, once it has read the state and before it ends.
  __device__ void Arrive() const {
    __syncthreads();
    if (threadIdx.x != 0) return;
    PeerState& state = *group.state;
    if (atomicAdd(&state.arrived, 1) + 1 < gridDim.x * gridDim.y) return;
    state.arrived = 0;
    state.buffer = buffer == 2 ? 0 : buffer + 1;
  }

  // Whether to go on waiting, asked after each kPolls looks; `start` is 0 at first.
  __device__ bool GoesOn(uint64_t& start) const {
    const uint64_t now = Nanoseconds();
    if (start == 0) start = now;
    PeerState& state = *group.state;
    const bool late = now - start > group.limit_ns;
    if (late) *static_cast<volatile uint32_t*>(group.stalled) = 1;
    if (late || *static_cast<const volatile uint32_t*>(group.abort) != 0) {
      *static_cast<volatile uint32_t*>(&state.dead) = 1;
    }
    return *static_cast<volatile uint32_t*>(&state.dead) == 0;
  }

  // The piece at `p` of the own inbox, of which `x` is the first look. False when the call is given
  // up.
  __device__ __forceinline__ bool Take(uint4* p, uint4& x) const {
    uint64_t start = 0;
    for (int polls = 1; !HasArrived(x); ++polls) {
      if (polls % kPolls == 0 && !GoesOn(start)) return false;
      x = LoadVolatile16(p);
    }
    *p = uint4{kEmptyWord, kEmptyWord, kEmptyWord, kEmptyWord};
    return true;
  }
  __device__ __forceinline__ bool Await(uint4* p, uint4& x) const {
    x = LoadVolatile16(p);
    return Take(p, x);
  }
};

// Elements of T in 16 bytes, as sums.
template <typename T>
struct Piece {
  static constexpr int kElements = 16 / sizeof(T);
  static constexpr int kInWord = 4 / sizeof(T);

  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;

  // Piece i of data[n]; zeros beyond its end.
  __device__ static uint4 Load(const T* data, size_t n, size_t i) {
    if ((i + 1) * kElements <= n) return reinterpret_cast<const uint4*>(data)[i];
    const Bits* const bits = reinterpret_cast<const Bits*>(data);
    const auto word = [&](int w) {
      const size_t at = i * kElements + w * kInWord;
      uint32_t x = at < n ? bits[at] : 0;
      if (kInWord == 2 && at + 1 < n) x |= uint32_t{bits[at + 1]} << 16;
      return x;
    };
    return {word(0), word(1), word(2), word(3)};
  }

  __device__ static void Store(T* data, size_t n, size_t i, const uint4& x) {
    if ((i + 1) * kElements <= n) {
      reinterpret_cast<uint4*>(data)[i] = x;
      return;
    }
    Bits* const bits = reinterpret_cast<Bits*>(data);
    const auto store = [&](int w, uint32_t word) {
      const size_t at = i * kElements + w * kInWord;
      if (at < n) bits[at] = static_cast<Bits>(word);
      if (kInWord == 2 && at + 1 < n) bits[at + 1] = static_cast<Bits>(word >> 16);
    };
    store(0, x.x), store(1, x.y), store(2, x.z), store(3, x.w);
  }

  __device__ static void Add(const uint4& x, float (&sum)[kElements]) {
    const uint32_t word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if constexpr (sizeof(T) == 4) {
        sum[w] += __uint_as_float(word[w]);
      } else {
        const float2 pair = UnpackBf16(word[w]);
        sum[2 * w] += pair.x;
        sum[2 * w + 1] += pair.y;
      }
    }
  }

  __device__ static uint4 Round(const float (&sum)[kElements]) {
    uint32_t word[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if constexpr (sizeof(T) == 4) {
        word[w] = __float_as_uint(sum[w]);
      } else {
        word[w] = PackBf16(sum[2 * w], sum[2 * w + 1]);
      }
    }
    return Full(uint4{word[0], word[1], word[2], word[3]});
  }
};

// The sum over ranks of one piece: `own` is this rank's, parts[PlaceOf(r)· stride] the others'.
template <typename T, int kRanks>
__device__ __forceinline__ bool SumPiece(const PeerCall& call, const uint4& own, uint4* parts,
                                         size_t stride, uint4& out) {
  const int rank = call.group.rank;
  uint4 x[kRanks];
  // All looks are under way at once; most find their piece at the second or third.
#pragma unroll
  for (int r = 0; r < kRanks; ++r) {
    if (r < call.group.size && r != rank) x[r] = LoadVolatile16(parts + PlaceOf(r, rank) * stride);
  }
  float sum[Piece<T>::kElements] = {};
#pragma unroll
  for (int r = 0; r < kRanks; ++r) {
    if (r < call.group.size) {
      uint4 piece = r == rank ? own : x[r];
      if (r != rank && !call.Take(parts + PlaceOf(r, rank) * stride, piece)) return false;
      Piece<T>::Add(piece, sum);
    }
  }
  out = Piece<T>::Round(sum);
  return true;
}

}  // namespace rootstock::kernels::cuda
