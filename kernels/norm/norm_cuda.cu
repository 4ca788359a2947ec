#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/lora/lora_launch.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/norm/norm_long.cuh"
#include "kernels/norm/norm_plain.cuh"
#include "kernels/norm/norm_row.cuh"
#include "kernels/norm/norm_tile.cuh"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kMaxRowTokens = 96;

// grid [tokens].
template <typename T>
__global__ void EmbedKernel(EmbedArgs args) {
  GridDependencyWait();
  GridLaunchDependents();
  int id = args.ids[blockIdx.x];
  if (id < 0) id = args.last_tokens[-1 - id];
  const int row = id - args.first_id;
  float* out = args.out + static_cast<size_t>(blockIdx.x) * args.n;
  const bool here = row >= 0 && row < args.table_rows;
  const T* in = static_cast<const T*>(args.table) + static_cast<size_t>(here ? row : 0) * args.n;
  for (int i = threadIdx.x; i < args.n; i += blockDim.x) out[i] = here ? ToFloat(in[i]) : 0.0f;
}

template <typename T, bool kLora>
void AddNormPlain(const AddNormArgs& args, const LoraStep& lora, const LoraTargets& targets,
                  cudaStream_t stream) {
  const auto kernel = AddNormPlainKernel<T, kLora>;
  const size_t shared = args.n * sizeof(float);
  if (shared > 48 * 1024) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared));
  }
  LaunchDependent(kernel, args.rows == nullptr ? args.tokens : args.num_rows, kNormThreads, shared,
                  stream, 1, args, lora, targets, LoraSplits(args.tokens, targets.in));
}

// How a row is cut: by the width alone, as it sets the order of the sums. warps 0: not at all.
struct NormCut {
  int cluster, warps;
};

NormCut CutOf(int n) {
  if (n % 64 != 0) return {};
  NormCut cut = {1, 0};
  int major = 0;
  int device = 0;
  if (cudaGetDevice(&device) == cudaSuccess) {
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  while (major >= 9 && cut.cluster < kNormMaxCluster && n / 64 / cut.cluster > 4) cut.cluster *= 2;
  cut.warps = (n / 64 + cut.cluster - 1) / cut.cluster;
  return cut.warps <= kNormMaxWarps ? cut : NormCut{};
}

// Few tokens. With LoRA registers hold B of a row, in all columns: where rows share adapters,
// unless they are very few, a cluster of blocks for eight rows is faster. The bits are the same.
bool FitsRow(const AddNormArgs& args, const NormCut& cut, bool with_lora, const LoraStep& lora,
             const LoraTargets& targets) {
  const int threads = 8 * cut.cluster * cut.warps;
  if (args.tokens > kMaxRowTokens || threads > kNormRowThreads) return false;
  return !with_lora ||
         (threads <= kNormRowLoraThreads * cut.cluster &&
          (args.tokens <= 8 || 2 * lora.max_groups > args.tokens) && targets.count == 1 &&
          targets.column[0] == 0 && targets.features[0] == args.n);
}

template <bool kLora>
void AddNormRow(const AddNormArgs& args, const NormCut& cut, const LoraStep& lora,
                const LoraTargets& targets, cudaStream_t stream) {
  const int cluster = kLora ? cut.cluster : 1;
  const int warps = (8 * cut.cluster * cut.warps + 32 * cluster - 1) / (32 * cluster);
  LaunchDependent(AddNormRowKernel<kLora>, args.tokens * cluster, 32 * warps, 0, stream, cluster,
                  args, lora, targets, LoraSplits(args.tokens, targets.in), cut.cluster, cut.warps,
                  cluster);
}

template <bool kLora>
void AddNormTile(const AddNormArgs& args, const NormCut& cut, const LoraStep& lora,
                 const LoraTargets& targets, cudaStream_t stream) {
  const int workers = LaunchTiles(kLora ? &lora : nullptr, args.tokens) *
                      (kLora ? LoraTileTokens(args.tokens) / 8 : 1);
  LaunchDependent(AddNormTileKernel<kLora>, cut.cluster * workers, 32 * cut.warps, 0, stream,
                  cut.cluster, args, lora, targets, LoraSplits(args.tokens, targets.in),
                  cut.cluster);
}

bool TakesLong(const AddNormArgs& args, const LoraTargets& targets) {
  return args.tokens > kDecodeTokens && args.n % 64 == 0 && args.n <= 4 * kNormRun &&
         AlignedTargets(targets, 64);
}

// A row is too wide to share what tokens share of B: the expand goes before.
void AddNormLong(const AddNormArgs& args, bool with_lora, const LoraStep& lora,
                 const LoraTargets& targets, cudaStream_t stream) {
  if (with_lora) LoraExpand(lora, targets, args.n, args.delta, args.tokens, stream);
  const auto kernel = args.n <= 2 * kNormRun ? AddNormLongKernel<2> : AddNormLongKernel<4>;
  LaunchDependent(kernel, args.rows == nullptr ? args.tokens : args.num_rows, kNormThreads, 0,
                  stream, 1, args);
}

}  // namespace

void Embed(const EmbedArgs& args, cudaStream_t stream) {
  if (args.tokens == 0) return;
  const auto kernel = args.type == Type::kF32 ? EmbedKernel<float> : EmbedKernel<__nv_bfloat16>;
  LaunchDependent(kernel, args.tokens, 256, 0, stream, 1, args);
}

void AddRmsNorm(const AddNormArgs& args, const LoraStep& lora, const LoraTargets& targets,
                cudaStream_t stream) {
  if ((args.rows == nullptr ? args.tokens : args.num_rows) == 0) return;
  const bool with_lora = targets.count != 0 && args.delta != nullptr;
  if (args.type == Type::kF32) {
    (with_lora ? AddNormPlain<float, true> : AddNormPlain<float, false>)(args, lora, targets,
                                                                         stream);
  } else if (TakesLong(args, targets)) {
    AddNormLong(args, with_lora, lora, targets, stream);
  } else if (const NormCut cut = CutOf(args.n);
             args.rows == nullptr && cut.warps != 0 && AlignedTargets(targets, 64)) {
    if (FitsRow(args, cut, with_lora, lora, targets)) {
      (with_lora ? AddNormRow<true> : AddNormRow<false>)(args, cut, lora, targets, stream);
    } else {
      (with_lora ? AddNormTile<true> : AddNormTile<false>)(args, cut, lora, targets, stream);
    }
  } else {
    (with_lora ? AddNormPlain<__nv_bfloat16, true>
               : AddNormPlain<__nv_bfloat16, false>)(args, lora, targets, stream);
  }
}

}  // namespace rootstock::kernels::cuda
