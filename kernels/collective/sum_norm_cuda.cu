#include "kernels/collective/sum_norm.cuh"
#include "kernels/collective/sum_norm_cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/lora/lora_launch.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kMostCluster = 8;

// How many blocks share a row, and the threads of each. Registers for many rows of B at once are to
// be had in small blocks alone.
struct SumNormCut {
  unsigned cluster, threads;
};

SumNormCut CutOf(int n, bool with_lora) {
  const int warps = (n + kWarpColumns - 1) / kWarpColumns;
  const int most = (with_lora ? kSumNormLoraThreads : kSumNormThreads) / 32;
  unsigned cluster = 1;
  while (cluster * most < static_cast<unsigned>(warps)) cluster *= 2;
  return {cluster, (warps + cluster - 1) / cluster * 32};
}

template <typename T, int kRanks, bool kLora>
cudaError_t Launch(const PeerGroup& group, const SumNormArgs& args, const SumNormLora& lora,
                   cudaStream_t stream) {
  const SumNormCut cut = CutOf(args.n, kLora);
  const int splits = LoraSplits(args.tokens, lora.whole.in);
  return LaunchDependent(SumNormKernel<T, kRanks, kLora>, cut.cluster * args.tokens, cut.threads, 0,
                         stream, cut.cluster, group, args, lora, splits, cut.cluster);
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

bool TakesSumNorm(const PeerGroup& group, Type type, int n) {
  const size_t bytes = size_t{kMostSumNormTokens} * n * SizeOf(type);
  return group.size <= kMaxPeers && n % 8 == 0 && n <= kMostSumNormColumns &&
         CutOf(n, true).cluster <= (HasClusters() ? kMostCluster : 1) &&
         (group.size - 1) * bytes <= group.buffer_bytes;
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
