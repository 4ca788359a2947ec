#include <cudaTypedefs.h>

#include <algorithm>
#include <utility>

#include "kernels/cuda/launch.h"
#include "kernels/linear/stream_kernel.cuh"
#include "kernels/linear/stream_lora_cuda.h"
#include "kernels/linear/stream_plan.h"
#include "kernels/lora/lora_launch.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kMaxShared = 232448;  // bytes a block
// For a kernel that shares: bytes of shared memory for two small blocks of it, and the bytes of w
// and x that are still to be loaded when it may start, which is its time: the more the longer its
// own loads may take beside these, but what it and the kernel behind it fetch must not leave the
// second cache before its use.
constexpr int kSharedRoom = 10240;
constexpr int SharedAhead(int token_rows) { return token_rows < 64 ? 72 << 20 : 512 << 20; }
// Bytes of w that a block which shares has under way at most, of what its ring holds. The other
// kernels' loads, each of a chain, wait behind them: 200 KB a block are 6 µs of memory.
constexpr int kSharedPace = 48 << 10;

bool OnSixteen(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

using Kernel = void (*)(const CUtensorMap, const CUtensorMap, const StreamParams);

// Of more than 64 tokens; null: none.
template <int N>
Kernel PickMany(int blocks, StreamForm form) {
  if (form == StreamForm::kGated) return StreamTwoGroupKernel<N, StreamForm::kGated>;
  if (blocks == 1) return StreamKernel<N, 1, StreamForm::kAny>;
  if (blocks == 2) return StreamKernel<N, 2, StreamForm::kAny>;
  return form == StreamForm::kWhole ? StreamTwoGroupKernel<N, StreamForm::kWhole> : nullptr;
}

template <int N>
Kernel PickForm(int blocks, StreamForm form) {
  if (form == StreamForm::kGated) {
    if constexpr (N == 8) return nullptr;
    return StreamKernel<N, 4, StreamForm::kGated>;
  }
  if (blocks == 1) return StreamKernel<N, 1, StreamForm::kAny>;
  if (blocks == 2) return StreamKernel<N, 2, StreamForm::kAny>;
  return form == StreamForm::kWhole ? StreamKernel<N, 4, StreamForm::kWhole>
                                    : StreamKernel<N, 4, StreamForm::kAny>;
}

Kernel Pick(int token_rows, int blocks, StreamForm form) {
  switch (token_rows) {
    case 8:
      return PickForm<8>(blocks, form);
    case 16:
      return PickForm<16>(blocks, form);
    case 32:
      return PickForm<32>(blocks, form);
    case 64:
      return PickForm<64>(blocks, form);
    default:
      return PickMany<96>(blocks, form);
  }
}

int Threads(int token_rows, int blocks) {
  return token_rows > 64 && blocks == 4 ? kTwoGroupThreads : kStreamThreads;
}

// A row-major bf16 matrix [rows, k] in boxes of 64 k and box_rows rows; what lies outside is 0.
bool Encode(void* encode, const void* data, int rows, int k, int box_rows, CUtensorMap* map) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(k) * 2};
  const cuuint32_t box[2] = {kBoxK, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(encode)(
             map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, strides, box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace

std::unique_ptr<StreamLinear> StreamLinear::Create(std::string* error) {
  const auto failed = [&](cudaError_t what) {
    if (what == cudaSuccess) return false;
    *error = std::string("weight-streaming kernel: ") + cudaGetErrorString(what);
    return true;
  };
  int device = 0;
  int major = 0;
  if (failed(cudaGetDevice(&device)) ||
      failed(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)) ||
      major != 9) {
    return nullptr;
  }
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  if (failed(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                              cudaEnableDefault, &found))) {
    return nullptr;
  }
  if (found != cudaDriverEntryPointSuccess) {
    *error = "the driver has no cuTensorMapEncodeTiled";
    return nullptr;
  }
  for (int token_rows : {8, 16, 32, 64, 96}) {
    for (const auto& [blocks, form] : {std::pair(1, StreamForm::kAny),
                                       {2, StreamForm::kAny},
                                       {4, StreamForm::kAny},
                                       {4, StreamForm::kWhole},
                                       {4, StreamForm::kGated}}) {
      const Kernel kernel = Pick(token_rows, blocks, form);
      if (kernel == nullptr) continue;
      if (failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      kMaxShared))) {
        return nullptr;
      }
    }
  }
  if (failed(PrepareLoraStreams(kMaxShared))) return nullptr;
  unsigned* counts = nullptr;
  if (failed(cudaMalloc(&counts, 2 * sizeof(unsigned))) ||
      failed(cudaMemset(counts, 0, 2 * sizeof(unsigned)))) {
    return nullptr;
  }
  return std::unique_ptr<StreamLinear>(new StreamLinear(encode, counts));
}

StreamLinear::~StreamLinear() { cudaFree(counts_); }

bool StreamLinear::Takes(const LinearArgs& args) {
  const StreamTile tile = StreamTile::For(args.n, args.k);
  return args.type == Type::kBF16 && args.m <= kMaxStreamRows && args.k % 8 == 0 &&
         OnSixteen(args.x) && OnSixteen(args.w) && OnSixteen(args.out) && OnSixteen(args.bias) &&
         (args.m <= 64 || MmaBlocks(tile.rows) < 4 || IsWhole(tile, args.n));
}

// A block holds the sums of matching rows of both halves, and of one tile. For fewest tokens the
// separate kernel costs less: the next layer's weights come in meanwhile.
bool StreamLinear::Gates(const LinearArgs& args) {
  const StreamTile tile = StreamTile::ForGated(args.n, args.k);
  return Takes(args) && args.m > 8 && args.out_type == Type::kBF16 && args.bias == nullptr &&
         args.n % 16 == 0 && MmaBlocks(tile.rows) == 4 && IsWhole(tile, args.n) &&
         (args.shrink == nullptr || StreamGatesLora(args, tile));
}

bool StreamLinear::Shrinks(const LinearArgs& args) {
  return Takes(args) && !args.gated && StreamShrinks(args, StreamTile::For(args.n, args.k));
}

std::string StreamLinear::Run(const LinearArgs& args, cudaStream_t stream) const {
  const StreamTile tile =
      args.gated ? StreamTile::ForGated(args.n, args.k) : StreamTile::For(args.n, args.k);
  const int token_rows = TokenRows(args.m);
  StreamRing ring;
  if (args.shares || (args.shrink != nullptr && !args.gated)) ring.max_bytes -= kSharedRoom;
  ring = ring.For(tile, args.k, token_rows);
  if (args.shares) {
    const int stage_bytes = kSms * BoxesBytes(tile.rows + token_rows, ring.stage_boxes);
    ring.trigger = 1 + SharedAhead(token_rows) / stage_bytes;
  }
  if (args.shares || args.shrink != nullptr) {
    ring.pace = CeilDiv(kSharedPace, BoxesBytes(tile.rows, ring.stage_boxes));
    ring.pace_always = true;
  }
  return Run(args, tile, ring, stream);
}

std::string StreamLinear::Run(const LinearArgs& args, StreamTile tile, StreamRing ring,
                              cudaStream_t stream) const {
  const int token_rows = TokenRows(args.m);
  CUtensorMap w, x;
  const int box_rows = args.gated ? tile.rows / 2 : tile.rows;
  if (!Encode(encode_, args.w, args.n, args.k, box_rows, &w) ||
      !Encode(encode_, args.x, args.m, args.k, token_rows, &x)) {
    return "no tensor map for this shape";
  }
  const StreamLaunch launch = PlanStream(args, tile, ring, token_rows);
  if (args.shrink != nullptr) {
    const cudaError_t error = LaunchLoraStream(args, tile, launch, w, x, counts_, stream);
    return error == cudaSuccess ? "" : cudaGetErrorString(error);
  }
  const StreamForm form = args.gated     ? StreamForm::kGated
                          : launch.whole ? StreamForm::kWhole
                                         : StreamForm::kAny;
  const int blocks = MmaBlocks(tile.rows);
  const Kernel kernel = Pick(token_rows, blocks, form);
  if (kernel == nullptr) return "no kernel for this tile";
  const cudaError_t error =
      LaunchDependent(kernel, dim3(launch.grid), dim3(Threads(token_rows, blocks)),
                      launch.shared_bytes, stream, tile.split, w, x, launch.params);
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

}  // namespace rootstock::kernels::cuda
