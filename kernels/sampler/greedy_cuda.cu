// Plain greedy: one pass over the logits, nothing kept. Each block of a row has a ring in shared
// memory that bulk copies fill, so that the most is under way from the start.
#include <algorithm>

#include "kernels/sampler/greedy_cuda.h"
#include "kernels/sampler/row_load.cuh"
#include "kernels/sampler/row_split.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kGreedyThreads = 512;
constexpr int kGreedyWarps = kGreedyThreads / 32;
constexpr uint64_t kNotFinite = ~uint64_t{0};  // above every entry

// Values in ascending order of ids.
struct Scan {
  float best = kNever;
  int id = 0;
  float poison = 0.0f;  // x · 0 is NaN where x is not finite
  __device__ void operator()(float v, int i) {
    poison = fmaf(v, 0.0f, poison);
    if (v > best) {
      best = v;
      id = i;
    }
  }
  template <typename T>
  __device__ void Sixteen(const uint4& bytes, int i) {
    const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if constexpr (sizeof(T) == 4) {
        (*this)(__uint_as_float(words[w]), i + w);
      } else {
        (*this)(FromBf16(words[w] & 0xffff), i + 2 * w);
        (*this)(FromBf16(words[w] >> 16), i + 2 * w + 1);
      }
    }
  }
  __device__ uint64_t entry() const { return poison != 0.0f ? kNotFinite : Entry(best + 0.0f, id); }
};

__device__ uint64_t WarpMax(uint64_t v) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) v = max(v, __shfl_xor_sync(kAllLanes, v, mask));
  return v;
}

struct GreedyShared {
  uint64_t warps[kGreedyWarps];
  uint64_t blocks[kMaxGroup];  // of the row, in its first block
  uint64_t joined;             // barrier: blocks
};

#if __CUDA_ARCH__ >= 900

constexpr int kMaxStages = 8;

struct Ring {
  uint64_t full[kMaxStages], empty[kMaxStages];  // barriers
};

__device__ void InitRing(Ring& ring, int stages) {
  for (int s = 0; s < stages; ++s) {
    InitBarrier(&ring.full[s]);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(&ring.empty[s])),
                 "r"(kGreedyWarps)
                 : "memory");
  }
}

// bytes: a multiple of 16, as both addresses.
__device__ void CopyBulk(unsigned char* to, const void* from, int bytes, uint64_t* barrier) {
  Expect(barrier, bytes);
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(SharedAddress(to)),
      "l"(from), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}

// logits [count] of this block, count · sizeof(T) a multiple of 16; first: the id of logits[0].
template <typename T, int kStages, int kStageBytes>
__device__ void ScanRing(Ring& ring, unsigned char* stages, const T* logits, int count, int first,
                         Scan& scan) {
  const int bytes = count * static_cast<int>(sizeof(T));
  const int chunks = (bytes + kStageBytes - 1) / kStageBytes;
  const auto copy = [&](int c) {
    const int s = c % kStages, at = c * kStageBytes;
    CopyBulk(stages + s * kStageBytes, reinterpret_cast<const unsigned char*>(logits) + at,
             min(kStageBytes, bytes - at), &ring.full[s]);
  };
  if (threadIdx.x == 0) {
    for (int c = 0; c < min(chunks, kStages); ++c) copy(c);
  }
  for (int c = 0; c < chunks; ++c) {
    const int s = c % kStages, at = c * kStageBytes;
    WaitFor(&ring.full[s], c / kStages);
#pragma unroll
    for (int i = 0; i < kStageBytes; i += kGreedyThreads * 16) {
      const int mine = i + static_cast<int>(threadIdx.x) * 16;
      if (at + mine >= bytes) break;
      scan.Sixteen<T>(*reinterpret_cast<const uint4*>(stages + s * kStageBytes + mine),
                      first + (at + mine) / static_cast<int>(sizeof(T)));
    }
    if (c + kStages >= chunks) continue;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(&ring.empty[s]))
                   : "memory");
    }
    if (threadIdx.x == 0) {
      WaitFor(&ring.empty[s], c / kStages);
      copy(c + kStages);
    }
  }
}

#endif

template <typename T>
__device__ void ScanLoads(const SampleStep& step, int row, int first, int count, Scan& scan) {
  for (int i = first + static_cast<int>(threadIdx.x); i < first + count; i += kGreedyThreads) {
    scan(RawLogit(step, row, i), i);
  }
}

// grid (group, rows), a cluster a row; a block takes `length` logits, a multiple of 16 bytes.
template <typename T, int kStages, int kStageBytes>
__global__ void __launch_bounds__(kGreedyThreads) GreedyRows(SampleStep step, int length) {
  __shared__ GreedyShared shared;
  const int row = blockIdx.y, rank = ClusterRank(), lane = threadIdx.x % 32;
  if (IsPad(step, row)) return;
  const bool writes = rank == 0 && threadIdx.x == 0;
  // Early: the parameters may be far away.
  const int slot = writes && step.last_tokens != nullptr ? step.rows[row].slot : 0;
  const int first = min(rank * length, step.vocab), count = min(length, step.vocab - first);
  Scan scan;
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char stages[];
  __shared__ Ring ring;
  if (threadIdx.x == 0) {
    InitBarrier(&shared.joined);
    InitRing(ring, kStages);
    FenceBarrierInit();
  }
  __syncthreads();
  ClusterArrive();
  const T* logits = static_cast<const T*>(step.logits) + static_cast<size_t>(row) * step.vocab;
  if (reinterpret_cast<uintptr_t>(logits) % 16 == 0 && count * sizeof(T) % 16 == 0) {
    ScanRing<T, kStages, kStageBytes>(ring, stages, logits + first, count, first, scan);
  } else {
    ScanLoads<T>(step, row, first, count, scan);
  }
#else
  ScanLoads<T>(step, row, first, count, scan);
#endif
  const uint64_t of_warp = WarpMax(scan.entry());
  if (lane == 0) shared.warps[threadIdx.x / 32] = of_warp;
  ClusterWait();
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const uint64_t of_block = WarpMax(lane < kGreedyWarps ? shared.warps[lane] : 0);
  if (lane == 0) {
    if (rank == 0) Expect(&shared.joined, ClusterSize() * sizeof(of_block));
    SendWords(shared.blocks + rank, of_block, &shared.joined, 0);
  }
  if (rank != 0) return;
  WaitFor(&shared.joined, 0);
  __syncwarp();
  const uint64_t best = WarpMax(lane < ClusterSize() ? shared.blocks[lane] : 0);
  if (!writes) return;
  const int token = best == kNotFinite ? -1 : EntryId(best);
  step.tokens[row] = token;
  if (step.host_tokens != nullptr) step.host_tokens[row] = token;
  if (step.last_tokens != nullptr) step.last_tokens[slot] = max(token, 0);
}

template <typename T, int kStages, int kStageBytes>
void Launch(const SampleStep& step, int group, cudaStream_t stream) {
  constexpr int kRing = kStages * kStageBytes;
  const auto kernel = GreedyRows<T, kStages, kStageBytes>;
  const bool clusters = group > 1;
  if (clusters) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRing);
  }
  cudaLaunchAttribute cluster;
  cudaLaunchConfig_t config =
      RowLaunch({.group = group}, step.num_rows, clusters ? kRing : 0, stream, &cluster);
  config.blockDim = dim3(kGreedyThreads);
  const int length = (step.vocab + group - 1) / group;
  cudaLaunchKernelEx(&config, kernel, step, (length + kTile - 1) / kTile * kTile);
}

// The best of several ways on an H200, for rows that run all at once, and for more.
template <typename T>
void LaunchBest(const SampleStep& step, cudaStream_t stream) {
  const int most = SplitRow(step.vocab).group;
  if (most == 1) return Launch<T, 4, 16384>(step, 1, stream);
  if (step.num_rows > 48 && step.num_rows <= 66) return Launch<T, 6, 32768>(step, 2, stream);
  Launch<T, 4, 16384>(step, most, stream);
}

}  // namespace

void SampleGreedy(const SampleStep& step, cudaStream_t stream) {
  if (step.logits_type == Type::kF32) {
    LaunchBest<float>(step, stream);
  } else {
    LaunchBest<uint16_t>(step, stream);
  }
}

}  // namespace rootstock::kernels::cuda
