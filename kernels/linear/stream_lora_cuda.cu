#include "kernels/cuda/launch.h"
#include "kernels/linear/stream_gated.cuh"
#include "kernels/linear/stream_kernel.cuh"
#include "kernels/linear/stream_lora_cuda.h"
#include "kernels/lora/lora_launch.h"

namespace rootstock::kernels::cuda {
namespace {

// What a block does whose copying warps give the shrinking ones their registers, and its
// multiplying ones what they have beyond kMultiply of kEntry a thread.
template <int N, int MB, StreamForm kForm, int kEntry, int kMultiply>
__device__ __forceinline__ void ShrinkBlock(const CUtensorMap* w, const CUtensorMap* x,
                                            const StreamParams& p, const StreamShrink& shrink,
                                            char* shared) {
  constexpr int kCopy = 24;
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const StreamRings rings(p, SharedAddress(shared));
  if (warp >= 8) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(3 * kEntry - kCopy - kMultiply));
    if (p.split > 1) ClusterArrive();
    ShrinkItems(shrink.step, shrink.targets, shrink.x, shrink.splits, /*x_ready=*/false,
                *reinterpret_cast<DecodeSums*>(shared + p.shrink_offset));
  } else if (warp >= 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCopy));
    if (warp < 6) StreamCopy<N>(w, x, p, rings, warp);
  } else {
    if constexpr (kMultiply > kEntry) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiply));
    } else {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kMultiply));
    }
    SyncStart();
    if (p.split > 1) ClusterArrive();
    StreamMultiply<N, MB, kForm>(p, rings, reinterpret_cast<float*>(shared + p.sums_offset));
  }
}

// StreamKernel with LoRA's shrink of x beside it, whose first rows of A are read before the kernel
// ahead has ended. Block: kShrinkStreamThreads, of so few registers that the consumer has room.
template <int N, int MB, StreamForm kForm>
__global__ void __launch_bounds__(kShrinkStreamThreads, 2)
    StreamShrinkKernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                       const __grid_constant__ StreamParams p,
                       const __grid_constant__ StreamShrink shrink) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char shared[];
  ShrinkBlock<N, MB, kForm, 80, 64>(&w, &x, p, shrink, shared);
#endif
}

// The same for more than 16 tokens.
template <int N, int MB>
__global__ void __maxnreg__(112)
    StreamShrinkWideKernel(const __grid_constant__ CUtensorMap w,
                           const __grid_constant__ CUtensorMap x,
                           const __grid_constant__ StreamParams p,
                           const __grid_constant__ StreamShrink shrink) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char shared[];
  ShrinkBlock<N, MB, StreamForm::kAny, 112, 144>(&w, &x, p, shrink, shared);
#endif
}

// Likewise, with silu(gate) · up of what the adapters make of gate and up: the four warps expand
// too, while weights stream.
template <int N>
__global__ void __launch_bounds__(kShrinkStreamThreads, 1)
    StreamGatedLoraKernel(const __grid_constant__ CUtensorMap w,
                          const __grid_constant__ CUtensorMap x,
                          const __grid_constant__ StreamParams p,
                          const __grid_constant__ StreamShrink lora) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char shared[];
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const StreamRings rings(p, SharedAddress(shared));
  if (warp >= 8) {
    ShrinkItems(lora.step, lora.targets, lora.x, lora.splits, /*x_ready=*/false,
                *reinterpret_cast<DecodeSums*>(shared + p.shrink_offset));
    ShrinkArrive(lora);
    ExpandGated(p, lora, reinterpret_cast<float*>(shared + p.delta_offset));
    GiveDeltas<StreamForm::kGatedLora>();
    ShrinkLeave(lora);
  } else if (warp >= 4) {
    if (warp < 6) StreamCopy<N>(&w, &x, p, rings, warp);
  } else {
    SyncStart();
    StreamMultiply<N, 4, StreamForm::kGatedLora>(p, rings,
                                                 reinterpret_cast<float*>(shared + p.sums_offset));
  }
#endif
}

// Likewise, where adapters have about a token each: the weights have come long before four warps
// could expand. Eight do, with the registers that the copying ones do not need.
template <int N>
__global__ void __launch_bounds__(kGatedRowsThreads, 1)
    StreamGatedRowsKernel(const __grid_constant__ CUtensorMap w,
                          const __grid_constant__ CUtensorMap x,
                          const __grid_constant__ StreamParams p,
                          const __grid_constant__ StreamShrink lora) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kCopy = 24, kMultiply = 168, kExpand = 160;
  static_assert(kCopy + kMultiply + kGatedSets * kExpand == 512);  // 128 a thread at the start
  extern __shared__ __align__(1024) char shared[];
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const StreamRings rings(p, SharedAddress(shared));
  if (warp >= 8) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kExpand));
    auto* sums = reinterpret_cast<DecodeSums*>(shared + p.shrink_offset);
    ShrinkItems<kGatedSets>(lora.step, lora.targets, lora.x, lora.splits, /*x_ready=*/false,
                            sums[DecodeSet<kGatedSets>()]);
    SyncGatedWarps();
    if (threadIdx.x == 256) ShrinkArriveOne(lora);
    ExpandGatedRows(p, lora, warp - 8, reinterpret_cast<float*>(shared + p.delta_offset));
    GiveDeltas<StreamForm::kGatedRows>();
    SyncGatedWarps();
    if (threadIdx.x == 256) ShrinkLeaveOne(lora);
  } else if (warp >= 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCopy));
    if (warp < 6) StreamCopy<N>(&w, &x, p, rings, warp);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiply));
    SyncStart();
    StreamMultiply<N, 4, StreamForm::kGatedRows>(p, rings,
                                                 reinterpret_cast<float*>(shared + p.sums_offset));
  }
#endif
}

// The same for more than 64 tokens and tiles of two instructions.
template <int N>
__global__ void __maxnreg__(136)
    StreamShrinkManyKernel(const __grid_constant__ CUtensorMap w,
                           const __grid_constant__ CUtensorMap x,
                           const __grid_constant__ StreamParams p,
                           const __grid_constant__ StreamShrink shrink) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char shared[];
  ShrinkBlock<N, 2, StreamForm::kAny, 136, 208>(&w, &x, p, shrink, shared);
#endif
}

using LoraKernel = void (*)(const CUtensorMap, const CUtensorMap, const StreamParams,
                            const StreamShrink);

// Of those whose registers leave room.
template <int N>
LoraKernel PickShrinkForm(int blocks, bool whole) {
  if (blocks == 1) return StreamShrinkKernel<N, 1, StreamForm::kAny>;
  if (blocks == 2) return StreamShrinkKernel<N, 2, StreamForm::kAny>;
  return whole ? StreamShrinkKernel<N, 4, StreamForm::kWhole> : nullptr;
}

template <int N>
LoraKernel PickWide(int blocks) {
  if (blocks == 1) return StreamShrinkWideKernel<N, 1>;
  return blocks == 2 ? StreamShrinkWideKernel<N, 2> : nullptr;
}

template <int N>
LoraKernel PickMany(int blocks) {
  if (blocks == 1) return StreamShrinkWideKernel<N, 1>;
  return blocks == 2 ? StreamShrinkManyKernel<N> : nullptr;
}

LoraKernel PickShrink(int token_rows, int blocks, bool whole) {
  if (token_rows == 96) return PickMany<96>(blocks);
  if (token_rows == 32) return PickWide<32>(blocks);
  if (token_rows == 64) return PickWide<64>(blocks);
  if (token_rows == 16) return PickShrinkForm<16>(blocks, whole);
  return PickShrinkForm<8>(blocks, whole);
}

LoraKernel PickGated(int token_rows, bool rows) {
  if (rows) return token_rows == 64 ? StreamGatedRowsKernel<64> : nullptr;
  if (token_rows == 16) return StreamGatedLoraKernel<16>;
  if (token_rows == 32) return StreamGatedLoraKernel<32>;
  return token_rows == 64 ? StreamGatedLoraKernel<64> : nullptr;
}

}  // namespace

cudaError_t PrepareLoraStreams(int shared_bytes) {
  for (const int token_rows : {8, 16, 32, 64, 96}) {
    for (const LoraKernel kernel :
         {PickShrink(token_rows, 1, false), PickShrink(token_rows, 2, false),
          PickShrink(token_rows, 4, true), PickGated(token_rows, false),
          PickGated(token_rows, true)}) {
      if (kernel == nullptr) continue;
      const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

bool StreamShrinks(const LinearArgs& args, StreamTile tile) {
  return PickShrink(TokenRows(args.m), MmaBlocks(tile.rows), IsWhole(tile, args.n)) != nullptr;
}

bool StreamGatesLora(const LinearArgs& args, StreamTile tile) {
  return PickGated(TokenRows(args.m), ExpandsRows(args)) != nullptr && args.n / 2 % 64 == 0 &&
         AlignedTargets(args.shrink->expand, 64) && CeilDiv(args.n, tile.rows) <= NumSms();
}

cudaError_t LaunchLoraStream(const LinearArgs& args, StreamTile tile, const StreamLaunch& launch,
                             const CUtensorMap& w, const CUtensorMap& x, unsigned* counts,
                             cudaStream_t stream) {
  const int token_rows = TokenRows(args.m);
  const LoraKernel kernel = args.gated ? PickGated(token_rows, ExpandsRows(args))
                                       : PickShrink(token_rows, MmaBlocks(tile.rows), launch.whole);
  if (kernel == nullptr) return cudaErrorInvalidConfiguration;
  StreamShrink shrink;
  shrink.step = args.shrink->step;
  shrink.targets = args.shrink->targets;
  shrink.expand = args.shrink->expand;
  shrink.x = static_cast<const __nv_bfloat16*>(args.x);
  shrink.splits = LoraSplits(args.m, args.k);
  shrink.arrived = counts;
  shrink.left = counts + 1;
  const int threads = ExpandsRows(args) ? kGatedRowsThreads : kShrinkStreamThreads;
  return LaunchDependent(kernel, dim3(launch.grid), dim3(threads), launch.shared_bytes, stream,
                         tile.split, w, x, launch.params, shrink);
}

}  // namespace rootstock::kernels::cuda
