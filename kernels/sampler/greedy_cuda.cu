// Plain greedy: one pass over the logits, nothing kept.
#include "kernels/sampler/greedy_cuda.h"
#include "kernels/sampler/row_load.cuh"
#include "kernels/sampler/row_split.h"

namespace rootstock::kernels::cuda {
namespace {

struct Best {
  uint64_t entry = 0;
  uint64_t bad = 0;
};

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
};

constexpr int kLoads = 4;  // in flight a thread
// Five blocks a multiprocessor: clusters fill whole GPCs only, and 64 rows are to run at once.
constexpr int kBlocks = 5;

// 16 bytes of logits a load. logits: of the row; [first, last) of this block, multiples of
// 16 bytes.
template <typename T>
__device__ void ScanVectors(const T* logits, int first, int last, Scan& scan) {
  constexpr int kEach = 16 / sizeof(T), kStride = kThreads * kEach;
  const auto load = [&](int at) { return __ldcs(reinterpret_cast<const uint4*>(logits + at)); };
  int i = first + static_cast<int>(threadIdx.x) * kEach;
  uint4 p[kLoads];
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    if (i + u * kStride < last) p[u] = load(i + u * kStride);
  }
  for (; i < last; i += kLoads * kStride) {
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int at = i + u * kStride, next = at + kLoads * kStride;
      if (at >= last) break;
      const uint32_t words[4] = {p[u].x, p[u].y, p[u].z, p[u].w};
      if (next < last) p[u] = load(next);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        if constexpr (sizeof(T) == 4) {
          scan(__uint_as_float(words[w]), at + w);
        } else {
          scan(FromBf16(words[w] & 0xffff), at + 2 * w);
          scan(FromBf16(words[w] >> 16), at + 2 * w + 1);
        }
      }
    }
  }
}

// grid (group, rows); a block takes `length` logits, a multiple of kTile.
template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocks) GreedyRows(SampleStep step, int length) {
  __shared__ alignas(16) unsigned char storage[sizeof(Exchange)];
  const int row = blockIdx.y;
  if (row >= *step.live_rows) return;
  RowGroup group(reinterpret_cast<Exchange*>(storage));
  const T* logits = static_cast<const T*>(step.logits) + static_cast<size_t>(row) * step.vocab;
  const int first = min(group.rank() * length, step.vocab);
  const int last = min(first + length, step.vocab);
  Scan scan;
  constexpr int kEach = 16 / sizeof(T);
  if (reinterpret_cast<uintptr_t>(logits) % 16 == 0 && step.vocab % kEach == 0) {
    ScanVectors(logits, first, last, scan);
  } else {
    for (int i = first + threadIdx.x; i < last; i += kThreads) scan(RawLogit(step, row, i), i);
  }
  group.Start();
  const Best mine = {Entry(scan.best + 0.0f, scan.id), scan.poison != 0.0f};
  const Best all = group.Reduce(mine, [](Best a, const Best& b) {
    a.entry = max(a.entry, b.entry);
    a.bad |= b.bad;
    return a;
  });
  if (group.rank() != 0 || threadIdx.x != 0) return;
  const int token = all.bad != 0 ? -1 : EntryId(all.entry);
  step.tokens[row] = token;
  if (step.last_tokens != nullptr) step.last_tokens[step.rows[row].slot] = max(token, 0);
}

}  // namespace

void SampleGreedy(const SampleStep& step, cudaStream_t stream) {
  const RowSplit split = SplitRow(step.vocab);
  cudaLaunchAttribute cluster;
  const cudaLaunchConfig_t config = RowLaunch(split, step.num_rows, 0, stream, &cluster);
  const int length = split.tiles * kTile;
  if (step.logits_type == Type::kF32) {
    cudaLaunchKernelEx(&config, GreedyRows<float>, step, length);
  } else {
    cudaLaunchKernelEx(&config, GreedyRows<uint16_t>, step, length);
  }
}

}  // namespace rootstock::kernels::cuda
