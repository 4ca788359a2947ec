#include <algorithm>

#include "kernels/collective/sum_norm.cuh"
#include "kernels/collective/sum_norm_cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/lora/lora_launch.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr unsigned kMostCluster = 8;

// How many blocks share a row, and the threads of each.
struct SumNormCut {
  unsigned cluster, threads;
};

SumNormCut CutOf(int n, bool with_lora) {
  const unsigned warps = (n + kWarpColumns - 1) / kWarpColumns;
  const unsigned wanted = (with_lora ? kSumNormLoraThreads : kSumNormThreads) / 32;
  const unsigned most = (with_lora ? kMostSumNormLoraThreads : kSumNormThreads) / 32;
  unsigned cluster = 1;
  while (cluster * (cluster < kMostCluster ? wanted : most) < warps) cluster *= 2;
  return {cluster, (warps + cluster - 1) / cluster * 32};
}

// Of a launch of so many rows, behind whatever is ahead of it. `attribute` is part of it.
cudaLaunchConfig_t ConfigOf(const SumNormCut& cut, int rows, cudaStream_t stream,
                            cudaLaunchAttribute* attribute) {
  attribute->id = cudaLaunchAttributeClusterDimension;
  attribute->val.clusterDim = {cut.cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = cut.cluster * rows;
  config.blockDim = cut.threads;
  config.stream = stream;
  config.attrs = attribute;
  config.numAttrs = cut.cluster > 1 ? 1 : 0;
  return config;
}

// How many rows find room at once on an empty GPU; none where it has no such clusters.
template <typename Kernel>
int RowsAtOnce(Kernel kernel, const SumNormCut& cut) {
  int rows = 0;
  cudaError_t error = cudaSuccess;
  if (cut.cluster == 1) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&rows, kernel, cut.threads, 0);
    rows *= NumSms();
  } else {
    cudaLaunchAttribute attribute = {};
    const cudaLaunchConfig_t config = ConfigOf(cut, 1, nullptr, &attribute);
    error = cudaOccupancyMaxActiveClusters(&rows, kernel, &config);
  }
  if (error == cudaSuccess) return rows;
  cudaGetLastError();  // else the next look at launches finds it
  return 0;
}

template <typename T, int kRanks, bool kLora>
void FindRows(int sharing, SumNormRows* out) {
  const Type type = sizeof(T) == 4 ? Type::kF32 : Type::kBF16;
  for (int n = kWarpColumns; n <= kMostSumNormColumns; n += kWarpColumns) {
    out->most[SumNormRows::At(type, kLora, n)] =
        RowsAtOnce(SumNormKernel<T, kRanks, kLora>, CutOf(n, kLora)) / sharing;
  }
}

template <int kRanks>
SumNormRows FindRows(int sharing) {
  SumNormRows out;
  FindRows<float, kRanks, false>(sharing, &out);
  FindRows<float, kRanks, true>(sharing, &out);
  FindRows<__nv_bfloat16, kRanks, false>(sharing, &out);
  FindRows<__nv_bfloat16, kRanks, true>(sharing, &out);
  return out;
}

// Rows [first, first + tokens) of args.
SumNormArgs RowsOf(const SumNormArgs& args, int first, int tokens) {
  SumNormArgs out = args;
  const size_t at = static_cast<size_t>(first) * args.n;
  out.residual += at;
  out.delta = static_cast<const std::byte*>(args.delta) + at * SizeOf(args.type);
  out.out = static_cast<std::byte*>(args.out) + at * SizeOf(args.type);
  out.tokens = tokens;
  return out;
}

// A block keeps its room while it waits for its peers', so one that found none would keep its push
// from them: a launch has no more blocks than there is room for, on any rank's GPU. Further rows
// are further calls, each when the one ahead has gone: blocks that waited for that would take the
// room of the peers on this GPU. No other kernel takes room for good: those ahead have all their
// blocks on the GPU when ours start, and one behind starts when all of ours have
// (GridLaunchDependents).
template <typename T, int kRanks, bool kLora>
cudaError_t Launch(const PeerGroup& group, const SumNormArgs& args, const SumNormLora& lora,
                   cudaStream_t stream) {
  const SumNormCut cut = CutOf(args.n, kLora);
  const auto kernel = SumNormKernel<T, kRanks, kLora>;
  const int splits = LoraSplits(args.tokens, lora.whole.in);
  const int most = group.sum_norm->Most(args.type, kLora, args.n);
  cudaError_t error = cudaSuccess;
  for (int first = 0; first < args.tokens && error == cudaSuccess; first += most) {
    const SumNormArgs rows = RowsOf(args, first, std::min(most, args.tokens - first));
    SumNormLora of_rows = lora;
    if (kLora) of_rows.step.row_of += first;
    if (first == 0) {
      error = LaunchDependent(kernel, cut.cluster * rows.tokens, cut.threads, 0, stream,
                              cut.cluster, group, rows, of_rows, splits, cut.cluster);
      continue;
    }
    cudaLaunchAttribute attribute = {};
    const cudaLaunchConfig_t config = ConfigOf(cut, rows.tokens, stream, &attribute);
    error = cudaLaunchKernelEx(&config, kernel, group, rows, of_rows, splits, cut.cluster);
  }
  return error;
}

template <typename T, int kRanks>
cudaError_t Launch(const PeerGroup& group, const SumNormArgs& args, const SumNormLora& lora,
                   cudaStream_t stream) {
  return lora.whole.count > 0 ? Launch<T, kRanks, true>(group, args, lora, stream)
                              : Launch<T, kRanks, false>(group, args, lora, stream);
}

template <typename T>
cudaError_t Launch(const PeerGroup& group, const SumNormArgs& args, const SumNormLora& lora,
                   cudaStream_t stream) {
  return group.size == 2 ? Launch<T, 2>(group, args, lora, stream)
                         : Launch<T, kMaxPeers>(group, args, lora, stream);
}

}  // namespace

SumNormRows FindSumNormRows(int size, int sharing) {
  return size == 2 ? FindRows<2>(sharing) : FindRows<kMaxPeers>(sharing);
}

bool TakesSumNorm(const PeerGroup& group, Type type, int n) {
  const size_t bytes = size_t{kMostSumNormTokens} * n * SizeOf(type);
  return group.sum_norm != nullptr && group.size <= kMaxPeers && n > 0 && n % 8 == 0 &&
         n <= kMostSumNormColumns && (group.size - 1) * bytes <= group.buffer_bytes &&
         group.sum_norm->Most(type, false, n) > 0 && group.sum_norm->Most(type, true, n) > 0;
}

cudaError_t SumAddRmsNorm(const PeerGroup& group, const SumNormArgs& args, const SumNormLora& lora,
                          cudaStream_t stream) {
  if (args.tokens == 0) return cudaSuccess;
  if (args.tokens > kMostSumNormTokens || !TakesSumNorm(group, args.type, args.n)) {
    return cudaErrorInvalidValue;
  }
  return args.type == Type::kF32 ? Launch<float>(group, args, lora, stream)
                                 : Launch<__nv_bfloat16>(group, args, lora, stream);
}

}  // namespace rootstock::kernels::cuda
